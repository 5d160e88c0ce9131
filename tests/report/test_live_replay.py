"""The replay of a live session: what its file holds."""

from __future__ import annotations

import asyncio
import io
import json
import re
from itertools import pairwise

import pytest
from PIL import Image, ImageSequence

from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.live.transcript import NAMES, SHARES
from kvlab.report.live_replay import HEIGHT, HELD, MOST_FRAMES, WIDTH, frames_of, live_gif, replay
from kvlab.views.base.export import find_browser

EVENTS = [
    {"kind": "opened", "owner": "ada", "request": {"context": "secret"}},
    {"kind": "context_texts", "texts": ["a", "</script><b>"]},
    {"kind": "branch_settled", "branch": 0, "label": "full 100 %", "live_bytes": 10, "full_bytes": 10},
    {"kind": "question", "turn": 0, "text": "Who?"},
    {"kind": "token", "turn": 0, "branch": 0, "token": 1, "text": "</script>", "kl": None, "leaves": False},
]


def test_the_file_holds_the_session_and_no_markup_of_its_texts() -> None:
    page = replay(EVENTS, "mini: <i>a</i>")
    assert "<title>mini: &lt;i&gt;a&lt;/i&gt;</title>" in page
    assert len(re.findall("</script>", page)) == 2, "only its own"
    (data,) = re.findall(r'<script type="application/json" id="session">(.*?)</script>', page, re.DOTALL)
    session = json.loads(data)
    assert session["texts"] == ["a", "</script><b>"]
    assert session["events"] == EVENTS[2:], "without its owner and request"
    assert not re.search(r"(src|href)=", page), "nothing is fetched"


def test_the_replay_shades_tokens_as_the_page_does() -> None:
    shares = re.search(r"const SHARES = \[(.*?)\]|var SHARES = \[(.*?)\]", read_static("live-replay.js"))
    assert shares is not None
    assert tuple(map(float, (shares[1] or shares[2]).split(","))) == SHARES
    assert len(HELD) == len(NAMES)


def test_a_session_without_a_context_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="no context has been read"):
        replay(EVENTS[:1], "x")


def test_a_gif_draws_every_question_and_as_many_other_steps_as_there_is_room_for() -> None:
    pauses = [step in (0, 1, 150) for step in range(300)]
    frames = frames_of(pauses)
    assert {0, 1, 150, 299} <= set(frames)
    assert len(frames) <= MOST_FRAMES
    assert max(after - before for before, after in pairwise(frames)) <= 6
    assert frames_of([True, False, False]) == [0, 1, 2]


@pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed")
def test_a_session_is_a_gif() -> None:
    words = [{**EVENTS[4], "text": f" word {number}"} for number in range(3)]
    seen: list[tuple[int, int]] = []
    ended = {"kind": "answer_ended", "branch": 0, "reason": "end", "live_bytes": 10}
    gif = live_gif([*EVENTS[:4], *words, ended], "mini", on_frame=lambda *frame: seen.append(frame))
    with Image.open(io.BytesIO(gif)) as pictures:
        sizes = [picture.size for picture in ImageSequence.Iterator(pictures)]
    assert sizes == [(WIDTH, HEIGHT)] * 5
    assert seen[-1] == (5, 5)


class SlowBrowser:
    """A browser that does not start."""

    def __init__(self, headless: bool) -> None:
        assert headless

    async def __aenter__(self) -> None:
        await asyncio.sleep(60)

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it was not entered")


@pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed")
def test_a_chromium_that_takes_too_long_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.report.live_replay.SECONDS", 0.01)
    monkeypatch.setattr("choreographer.Browser", SlowBrowser)
    with pytest.raises(UserError, match="did not draw the replay in time"):
        live_gif(EVENTS, "x")


def test_without_chromium_a_gif_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.report.live_replay.find_browser", lambda: None)
    with pytest.raises(UserError, match="A GIF needs Chromium"):
        live_gif(EVENTS, "x")
