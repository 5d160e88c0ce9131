"""What a comparison tells of its texts while they are written, and what that may cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.engine.live_texts import GrowingText
from kvlab.engine.progress import LIVE_SECONDS, LIVE_SHARE, Pace, Watch
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest, Progress
from kvlab.requests.live_texts import LiveTexts
from kvlab.requests.repeats import Repeat
from kvlab.trace import open_run

WORDS = {1: "An", 2: " old", 3: " \ufffd", 4: "é", 5: " lamp"}


def decode(ids: list[int]) -> str:
    """As tokenizers do: the first token loses its space, and half a character is an unknown one."""
    text = "".join(WORDS[one] for one in ids).replace("\ufffdé", "é")
    return text.lstrip(" ")


@pytest.mark.parametrize("steps", [(1, 2, 3, 4, 5, 20, 40), (40,), (3, 40)])
def test_a_growing_text_is_the_text_of_all_tokens_in_any_steps(steps: tuple[int, ...]):
    ids = [1, 2, 3, 4, 5] * 8
    text = GrowingText(decode)
    for count in steps:
        assert text.extend(ids[:count]) == decode(ids[:count])
    assert text.text == decode(ids)


def test_a_growing_text_decodes_new_tokens_only():
    seen: list[int] = []

    def counted(ids: list[int]) -> str:
        seen.append(len(ids))
        return decode(ids)

    text = GrowingText(counted)
    for count in range(1, 1001):
        text.extend(([1, 2, 5] * 400)[:count])
    assert max(seen) < 20


def test_the_texts_are_told_a_few_times_a_second_and_in_a_small_share_of_the_time():
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.is_due()
    with pace.spending():
        now[0] += 0.01  # what it took
    now[0] = LIVE_SECONDS
    assert not pace.is_due(), "too soon"
    now[0] = 0.01 / LIVE_SHARE - 0.1
    assert not pace.is_due(), "it took more than its share"
    now[0] = 0.01 / LIVE_SHARE + 0.1
    assert pace.is_due()


def test_texts_are_read_only_for_somebody_who_watches():
    def never() -> LiveTexts:
        raise AssertionError

    Watch(1, None, None).advance("decoding", live=never)


@pytest.mark.parametrize("methods", [("streaming-llm", "h2o"), ("streaming-llm", "kvzip")])
def test_each_run_tells_the_text_that_it_records(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
):
    monkeypatch.setattr("kvlab.engine.progress.LIVE_SECONDS", 0.0)
    monkeypatch.setattr("kvlab.engine.progress.LIVE_SHARE", 1e9)
    choices = tuple(MethodChoice(method=method, budget=0.2) for method in methods)
    request = CompareRequest(prompt="Alice was tired of it. " * 8, choices=choices, max_new_tokens=12, title="tired")
    repeat = Repeat(batch="b", number=2, of=3, planting=None, name="tired")
    request = request.model_copy(update={"title": "2 of 3: tired", "repeat": repeat})
    told: list[LiveTexts] = []

    def listen(progress: Progress) -> None:
        if progress.live is not None:
            told.append(progress.live)

    paths = compare(request, tmp_path, loaded=tiny, progress=listen)
    assert [one.label for one in told[0].texts] == ["full cache", *(choice.label for choice in choices)]
    assert (told[0].title, told[0].prompt_end.endswith("tired of it.")) == ("2 of 3: tired", True)
    counts = [[one.tokens for one in live.texts] for live in told]
    assert counts == sorted(counts), "texts only grow"
    assert any(0 < min(one) < 12 for one in counts), "they are told before the end"
    full = open_run(paths[0])
    reference = full.tokens[full.tokens["phase"] == "forced"]["id"].tolist()
    for path, last in zip(paths, told[-1].texts, strict=True):
        run = open_run(path)
        own = run.tokens[run.tokens["phase"] == "free"]["id"].tolist()
        differing = next(
            (place for place, (one, two) in enumerate(zip(own, reference, strict=False)) if one != two), -1
        )
        assert (last.state, last.text) == ("ended", run.record.free_text)
        assert last.left_token == differing + 1
        assert last.held == pytest.approx(1.0 if last.method == "full" else 0.2, abs=0.1)
