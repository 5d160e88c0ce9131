"""The sentence of every figure: that there are frames for it, and what it never says."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlab.papers
import kvlab.views
from kvlab.papers.exhibit import Drawn
from kvlab.results.risk import export
from kvlab.results.sources import Sources
from kvlab.views import autopsy, regret, restore, serving, trade_off
from kvlab.views import board as boards
from kvlab.views.base import words
from kvlab.views.base.provenance import Provenance
from tests.figures.generated_frames import CASES, DRAWINGS, NAMES, VARIANTS, Values, cases, draw_with

MODULES = {}
VIEWS = {
    f"view {view.name}": import_module(f"{kvlab.views.__name__}.{view.name}")
    for view in iter_modules(kvlab.views.__path__)
    if not view.ispkg
}
VIEWS["results risk"] = export
PAPERS = Path(kvlab.papers.__path__[0])
for _file in PAPERS.rglob("*.py"):
    if _file.stem not in ("__init__", "evaluations"):
        _parts = _file.relative_to(PAPERS).with_suffix("").parts
        MODULES[" ".join(("papers", *_parts))] = import_module(".".join(("kvlab.papers", *_parts)))
# Sentences that join another caption, or stand below a table.
# Of several prompts, or another caption as it stands: with their frames in `tests/views`.
OF_BATCHES = {"describe_answers", "describe_similarity_of_head"}
REMARKS = {"caption_beyond_budget", "caption_unequal_bytes", "caption_references", "caption_significance"}
PRIVATE = re.compile(
    r"\b(sag|sags|regret|votes?|KL|nats?|pivots?|perturbation|ballots|logits?|epsilon|gamma|cosine|median|quartile|"
    r"correlation|kurtosis|shadow|forced|perplexity|Jaccard|recall|nan|inf|None(?! of))\b|[{}]|  |\b0 %|100 %"
)
CONTRAST = re.compile(r"\b(largest|smallest|higher|lower|closest|furthest|better|worse)\b|\b(more|less) than")
LONGEST = 190
OF_EXHIBIT = {"origin": Provenance(), "claim": None, "theme": "light"}
# Exhibits whose captions are those of views, or of a claim's evidence: in `tests/papers`.
OF_VIEWS = {
    "beyond recordings.draw_shares", "kvmerger needle.draw_needle", "kvmerger similarity.draw_walls",
    "benchmarks.draw_lengths", "benchmarks.draw_rates", "gvote scores.draw_models", "model_exhibits.draw_shipped",
}  # fmt: skip


def test_there_are_frames_for_every_caption():
    functions = {
        f"{name}.{function.__name__}": function
        for name, module in MODULES.items()
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and function.__name__[0] != "_"
    }
    exhibits = {
        name.removeprefix("papers ")
        for name, function in functions.items()
        if "draw_" in name and "caption = " in inspect.getsource(function)
    }
    assert exhibits - OF_VIEWS == {name.partition("#")[0] for name in DRAWINGS}
    made = {name for name, function in functions.items() if "caption_" in name or _is_drawn(function)}
    made |= {
        f"{name}.{caption.removeprefix('caption_')}"
        for name, module in VIEWS.items()
        for caption in vars(module)
        if caption.startswith("caption_") and caption not in REMARKS
    }
    # Captions of views that read the run too, or rows of many methods, are in `tests/views`.
    made |= {
        f"{name}.{caption}"
        for name, module in VIEWS.items()
        if name != "view public_board"
        for caption, function in vars(module).items()
        if caption.startswith("describe_") and caption not in OF_BATCHES
        if "run" not in inspect.signature(function).parameters
    }
    assert made == set(CASES)


def _is_plain(sentence: object, case: tuple[str, str], alike: bool) -> None:
    _, variant = case
    what = (*case, sentence)
    assert isinstance(sentence, str) and sentence.endswith(".") and "\n" not in sentence, what
    assert sentence[0].isupper() or sentence[0].isdigit() or sentence.startswith(("“", *NAMES)), what
    assert len(sentence) <= LONGEST and not PRIVATE.search(sentence), what
    assert variant != "missing" or not CONTRAST.search(sentence), what
    mentioned = [one for one in NAMES if one in sentence]
    assert not alike or len(mentioned) in (0, 1 if variant == "single" else len(NAMES)), what


def _is_drawn(function: Callable[..., object]) -> bool:
    """Whether it draws a figure with its caption from a frame."""
    return inspect.signature(function).return_annotation in (Drawn, "Drawn")


@pytest.mark.parametrize("name", DRAWINGS)
def test_exhibits_have_plain_captions(name: str, compared_runs: Sources, monkeypatch: pytest.MonkeyPatch):
    """Of what is drawn, the sentence and not the notes that follow it, such as what was sampled."""
    said = set()
    function, _, figure = name.partition("#")
    for variant in VARIANTS:
        with monkeypatch.context() as patch:
            drawn = draw_with(patch, function, DRAWINGS[name](Values(variant)), compared_runs)
        for one in (one for one in drawn if figure in ("", one.name)):
            said.add(one.caption)
            sentence = re.split(r"(?<=[.]) (?=[A-Z])", one.caption)[0]
            _is_plain(sentence, (name, variant), variant in ("none", "all", "equal", "single"))
    assert len(said) > 1 or name == "kvmerger explainers.draw_three_ways"


def test_captions_are_plain_and_single_out_nothing_where_all_are_equal():
    for name in CASES:
        if name == "papers verdict_figure.caption_card":
            continue  # has n and interval of every mark: tests/papers/test_verdict_card.py
        module, _, figure = name.partition(".")
        of_view = module in VIEWS and not figure.startswith("describe_")
        tell = getattr((VIEWS | MODULES)[module], f"caption_{figure}" if of_view else figure)
        said = set()
        of_exhibit = module in MODULES and _is_drawn(tell)
        takes = inspect.signature(tell).parameters if of_exhibit else ()
        further = {one: value for one, value in OF_EXHIBIT.items() if one in takes}
        for variant, case in cases(name):
            found = tell(*case.args, **further)
            sentence = found.caption if of_exhibit else found
            said.add(sentence)
            _is_plain(sentence, (name, variant), case.alike)
        assert len(said) > 1, name


@given(st.floats(0, 1))
def test_none_and_all_are_said_of_nothing_else(share: float):
    assert (words.part(share) == "none") == (share <= 1e-9)
    assert (words.part(share) == "all") == (share >= 1 - 1e-9)
    assert (words.often(share) == "never") == (share <= 1e-9)
    assert (words.often(share) == "always") == (share >= 1 - 1e-9)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, math.nan]), min_size=1, max_size=6))
def test_a_contrast_names_all_with_the_least_and_all_with_the_most(values: list[float]):
    series = pd.Series(values, index=list("abcdef")[: len(values)])
    told = words.contrast(series, "{least} < {most}", "equal", "{only} alone", "nothing")
    known = series.dropna()
    if known.empty:
        assert told == "nothing"
    elif len(known) == 1:
        assert told == f"{known.index[0]} alone"
    elif known.nunique() == 1:
        assert told == "equal"
    else:
        least, most = (list(known.index[known == edge]) for edge in (known.min(), known.max()))
        assert told == f"{words.join_names(least)} < {words.join_names(most)}"


def test_counts_of_none_one_some_and_all():
    assert [words.some_of(count, 3, "run") for count in range(4)] == [
        "none of the 3 runs", "1 of the 3 runs", "2 of the 3 runs", "all 3 runs",
    ]  # fmt: skip
    assert [words.some_of(count, 1, "run") for count in range(2)] == ["no run", "the only run"]
    assert words.some_of(2, 2, "run") == "both runs"
    assert words.join_names(NAMES) == "h2o 20 %, keepkv 20 % and 4 others"


def test_the_board_says_who_holds_the_fact_and_who_lost_it():
    frame = pd.DataFrame(
        {"label": ["keepkv", "keepkv", "h2o", "h2o"], "run_id": ["a", "a", "b", "b"], "column": "20 %", "position": 1,
         "verdict": ["right", "right", "wrong", "wrong"], "kept": [0.6, 0.4, 0.0, 0.0],
         "dropped": [0.1, 0.3, 1.0, 1.0], "kl_answer": 1.0}
    )  # fmt: skip
    caption = boards.caption_board(frame)
    assert caption == (
        "The answer is right in 1 of the 2 runs; when the answer was written, of the text it needs, the "
        "largest part is kept unmerged by keepkv, nothing of it by h2o."
    )


@pytest.mark.parametrize(
    ("share", "fraction"),
    [(0.05, "a small part"), (0.2, "about a fifth"), (0.206, "about a fifth"), (0.222, "about a fifth"),
     (0.25, "about a quarter"), (0.33, "about a third"), (0.5, "about half")],
)  # fmt: skip
def test_a_share_is_called_by_the_nearest_simple_fraction(share: float, fraction: str):
    assert words.part(share) == fraction


def test_the_step_of_a_loss_is_not_hidden_by_another_one_that_reads_as_much():
    """Of five steps at 100 % the first loses nothing, and the one that writes the wrong digit loses 55 points."""
    steps = pd.DataFrame({"step": range(7), "true": [0.1, 1, 1, 0.999, 1, 1, 0.3], "received": 1.0})
    steps["full"] = steps["true"]
    steps.loc[4, "received"], steps.loc[6, "received"] = 0.45, 0.0
    caption = autopsy.caption_needle_mass(steps)
    assert "less than half as much attention" in caption and "about as much" not in caption
    assert "about as much attention" in autopsy.caption_needle_mass(steps.assign(received=steps["true"]))


def answer_attention(**masses: tuple[float, float, float]) -> pd.DataFrame:
    """Attention on the tokens 0 `<s>`, 40 `1` and 41 `3` by series."""
    names = {"full": "full cache", "ran": "as it ran"}
    return pd.DataFrame(
        [
            {"series": names[series], "token": token, "text": text, "mass": mass}
            for series, values in masses.items()
            for token, text, mass in zip((0, 40, 41), ("<s>", " 1", " 3"), values, strict=True)
        ]
    )


def test_an_attention_sink_is_not_the_token_that_explains_an_answer():
    frame = answer_attention(full=(0.571, 0.08, 0.2), ran=(0.568, 0.08, 0.01))
    caption = restore.caption_attention_before_after(frame)
    assert caption.startswith("Apart from the attention sink, the full cache looks most at “3”")
    assert "less attention with as it ran" in caption
    alone = restore.caption_attention_before_after(answer_attention(full=(0.571, 0, 0), ran=(0.568, 0, 0)))
    assert "an attention sink, which says nothing about the text, the others about as much" in alone
    assert "at least" not in caption + alone


def points_with_verdicts() -> pd.DataFrame:
    """Losers with the fewest bytes, two that are right, and the full cache."""
    rows = [
        ("full", 66.0, 0.0, "right"),
        ("streaming-llm", 13.3, 1.1, "wrong"),
        ("h2o", 13.4, 0.9, "wrong"),
        ("exactmerge2", 14.1, 0.005, "right"),
        ("kvzip", 14.0, 0.013, "right"),
        ("gvote", 30.0, 0.001, "right"),
    ]
    frame = pd.DataFrame(rows, columns=["method", "mib", "quality", "verdict"])
    return frame.assign(
        label=frame["method"], row=frame["method"], column="20 %", live_bytes=frame["mib"] * 2**20, low=np.nan,
        bytes_read=frame["mib"] * 2**20, high=np.nan, prompts=1, measure="mean_kl",
    )  # fmt: skip


def test_the_headline_of_quality_against_bytes_names_no_loser():
    points = points_with_verdicts()
    caption = trade_off.caption_quality_against_bytes(points)
    assert caption.startswith("Right at the fewest bytes: kvzip (14 MiB) and exactmerge2 (14.1 MiB).")
    assert "streaming-llm" not in caption
    lost = trade_off.caption_quality_against_bytes(points.assign(verdict="wrong"))
    assert lost.startswith("No run has a right answer; closest to the full cache: gvote (30 MiB).")
    unjudged = trade_off.caption_quality_against_bytes(points.assign(verdict=""))
    assert unjudged.startswith("Closest to the full cache: gvote (30 MiB).")


def test_a_correlation_that_its_interval_does_not_tell_from_none_is_not_told_as_none(monkeypatch: pytest.MonkeyPatch):
    def caption(heads: int, correlation: float) -> str:
        frame = pd.DataFrame({"live_slots": np.arange(heads), "regret": 0.1, "layer": 0, "head": np.arange(heads)})
        monkeypatch.setattr(regret, "rank_correlation", lambda slots, lost: correlation)
        return regret.caption_budget_against_regret(frame)

    few = caption(24, 0.0565)
    assert "not related" not in few and "cannot be told" in few
    assert "lose less" in caption(24, -0.7) and "lose more" in caption(200, 0.3)
    assert "cannot be told" in caption(24, 0.3)


def test_a_merged_slot_is_given_up_not_dropped():
    frame = pd.DataFrame({"label": ["zsmerge"], "dropped": [0.8], "layer": [0.2], "model": [0.1], "page": [16]})
    told, figure = serving.verdict(frame, "zsmerge"), serving.freed_by_run(frame)
    assert "gives up 80 %" in told
    assert "drop" not in told + serving.caption_freed_by_run(frame) + str([trace.name for trace in figure.data])
