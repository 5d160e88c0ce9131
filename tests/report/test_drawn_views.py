"""What is no chart, drawn with every token of it and played step by step."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageSequence

from kvlab.cli import commands
from kvlab.core.errors import UserError
from kvlab.report.contents import provenance, slide_title, subject_of
from kvlab.report.pictures import MOST_FRAMES, animation, columns, frames_of, history_picture, laid_out, picture
from kvlab.report.views import History, Text
from kvlab.trace.reader import Run
from kvlab.views.base.export import ImageWriter
from kvlab.views.frames.lineage import Lineage, State, states_at
from kvlab.views.similarity import similarity_map
from tests.report.test_views import HOSTILE, SVG, needs_browser


def words_in(svg: bytes) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_of_a_text_holds_every_token(text: Text):
    told = "".join(words_in(picture(text))).replace("⏎", "")
    assert all(token.strip() in told for token in text.texts)
    strange = text.model_copy(
        update={"texts": (HOSTILE, "漢字" * 200, "\n\n", "🙂", "")[: len(text.texts)], "codes": (0,) * 5}
    )
    ElementTree.fromstring(picture(strange, "dark"))


@pytest.mark.parametrize("across", [1, 7, 40])
def test_no_line_is_longer_than_there_is_room(text: Text, across: int):
    pieces = laid_out((*text.texts, "a\nb", "x" * 90), across)
    assert "".join(one.text for one in pieces).replace("⏎", "").startswith("".join(text.texts).replace("\n", ""))
    ends = [one.column + columns(one.text) - ("⏎" in one.text) for one in pieces]
    assert max(ends) <= max(across, 2)
    places = [(one.line, one.column) for one in pieces]
    assert places == sorted(places)


def test_a_text_with_no_room_says_what_is_left_out(text: Text):
    long = Text(texts=("word ",) * 5000, codes=(0,) * 5000, classes=text.classes, chosen=(2500, 2501))
    told = words_in(picture(long))[-1]
    first, last = (int(part.replace(",", "")) for part in told.removeprefix("Tokens ").split(" of ")[0].split(" to "))
    assert first < 2500 < last < 5000 and "5,000" in told


def test_the_picture_of_a_step_has_its_slots_and_states(history: History, lineage: Lineage):
    for step in (history.steps[0], history.steps[-1]):
        told = " ".join(words_in(history_picture(history, step)))
        codes = states_at(lineage, step)
        assert f"{int(lineage.alive(step).sum())} slots for {int((codes != State.UNSEEN).sum())} tokens" in told


def test_frames_are_few_and_hold_both_ends(history: History, lineage: Lineage):
    assert frames_of(history) == list(history.steps)
    long = history.model_copy(update={"steps": tuple(range(1000))})
    chosen = frames_of(long)
    assert len(chosen) <= MOST_FRAMES and chosen[0] == 0 and chosen[-1] == 999 and chosen == sorted(set(chosen))


@needs_browser
def test_a_gif_plays_every_step(history: History, writer: ImageWriter):
    told: list[tuple[int, int]] = []
    short = history.model_copy(update={"steps": history.steps[:1] + history.steps[-2:]})
    film = Image.open(io.BytesIO(animation(short, writer, on_frame=lambda *at: told.append(at))))
    frames = [np.asarray(frame.convert("RGB"), int) for frame in ImageSequence.Iterator(film)]
    assert told == [(1, 3), (2, 3), (3, 3)] and len(frames) == 3
    assert all(frame.std() > 5 for frame in frames), "a frame is blank"
    assert all(np.abs(a - b).sum() > 0 for a, b in pairwise(frames)), "nothing moves"
    with pytest.raises(UserError, match="one step"):
        animation(history.model_copy(update={"steps": (0,)}), writer)


@needs_browser
@pytest.mark.parametrize("columns", [16, 9])
def test_the_cells_of_a_similarity_map_are_square_in_a_picture(writer: ImageWriter, columns: int):
    frame = pd.DataFrame(np.eye(16)[:, :columns])
    drawn = writer.image(similarity_map(frame, ["a"] * 16), "svg").decode()
    sizes = [re.search(rf'<image[^>]* {side}="([0-9.]+)"', drawn) for side in ("width", "height")]
    width, height = (float(found[1]) for found in sizes if found)
    assert abs(width / columns - height / 16) < 0.02 * height / 16


def test_bad_words_for_a_gif_are_one_sentence(keepkv: Run, tmp_path: Path):
    root, out = str(keepkv.path.parent), str(tmp_path / "x.gif")
    for words in (["--layer", "9"], ["--head", "-1"]):
        with pytest.raises(UserError, match="choose one of them"):
            commands(["report", keepkv.record.run_id, "--runs", root, "--out", out, *words], standalone_mode=False)


def test_what_stands_under_a_picture(keepkv: Run):
    text = keepkv.tokens["text"].tolist()
    of = subject_of([keepkv], {"layer": "3", "head": "1", "span": "2-3"})
    for part in (keepkv.record.label, keepkv.record.model.name, "layer 3, head 1", f"“{''.join(text[2:4]).strip()}”"):
        assert part in of
    assert keepkv.record.run_id not in of and keepkv.record.run_id in provenance([keepkv])
    assert "head" not in subject_of([keepkv], {"layer": "3", "head": "1"}, ("layer", "head"))
    assert "words “secret”" in subject_of([keepkv], {"words": " secret\n"})
    assert subject_of([keepkv], {"span": "99999-4"}) and subject_of([], {}) == ""


def test_the_title_of_a_slide_stands_alone(keepkv: Run):
    place, label = {"layer": "3", "head": "1"}, keepkv.record.label
    chosen = "Attention on the chosen tokens, this head"
    assert slide_title(chosen, [keepkv], place) == f"{label}: attention on the fact, layer 3 head 1"
    searched = slide_title(chosen, [keepkv], place | {"words": "the code"})
    assert searched == f"{label}: attention on “the code”, layer 3 head 1"
    assert slide_title("Fate over the steps, all heads", [keepkv], place) == f"{label}: fate over the steps, all heads"
    assert slide_title("Regret", [keepkv], place, ("layer", "head")) == f"{label}: regret"
    assert slide_title("KL by step", [keepkv], {}) == f"{label}: KL by step"
    assert slide_title("KeepKV in short", [keepkv], {}) == f"{label}: KeepKV in short"
    named = f"{label}: the fate of each token"
    assert slide_title(named, [keepkv], place) == f"{named}, layer 3 head 1"
    assert slide_title("Bytes", [keepkv] * 4, {}).startswith("4 runs: bytes")
    assert slide_title("Runs", [], place) == "Runs"
