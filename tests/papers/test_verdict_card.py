"""The figure of a verdict: a dot per prompt, mean and interval, the range that counts, and the paper's value."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvlab.common.intervals import Interval, mean_interval, mean_over_groups, pairs_interval
from kvlab.papers.evidence import interval_of
from kvlab.papers.model_exhibits import claim_values
from kvlab.papers.verdict_figure import caption_card, card_frame, verdict_card
from kvlab.results.shipped_folder import parse_claim
from kvlab.results.verdict import Basis, Claim, Threshold, judge

VALUES = [0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4, -0.1]
ABOVE = Threshold(0.0, "for a test")


def claim(threshold: Threshold = ABOVE, values: list[float] = VALUES) -> Claim:
    return judge("It is so.", interval_of(values), threshold, Basis(len(values)), "It is.")


def test_the_samples_of_an_interval_are_those_it_was_computed_from():
    assert mean_interval(VALUES).samples == tuple(VALUES)
    assert mean_interval([1.0, float("nan"), 0.0]).samples == (1.0, 0.0)
    assert mean_over_groups([1.0, 0.0], ["a", "b"], kind="score").samples == (1.0, 0.0)
    table = np.array([[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]])
    assert pairs_interval(table).samples == (0.2, 0.3, 0.4)


@pytest.mark.parametrize(
    ("threshold", "low", "high", "words"),
    [
        (ABOVE, 0.0, np.inf, "above 0"),
        (Threshold(0.3, "x", at_most=True), -np.inf, 0.3, "below 0.3"),
        (Threshold(0.8, "x", up_to=1.25), 0.8, 1.25, "0.8 to 1.25"),
    ],
)
def test_frame_figure_and_caption_have_the_verdict_s_numbers(threshold: Threshold, low: float, high: float, words: str):
    judged = claim(threshold)
    frame = card_frame(judged)
    assert frame.loc[frame["part"] == "dot", "value"].tolist() == VALUES
    mean = frame[frame["part"] == "mean"].iloc[0]
    assert judged.interval is not None
    assert (mean["value"], mean["low"], mean["high"], mean["n"]) == (
        judged.interval.mean, judged.interval.low, judged.interval.high, 8,
    )  # fmt: skip
    assert frame[frame["part"] == "threshold"][["low", "high"]].to_numpy().tolist() == [[low, high]]
    caption = caption_card(frame)
    assert "One dot per prompt (n = 8)" in caption and caption.endswith(f"Counts for the claim: {words}.")
    for theme in ("light", "dark"):
        figure = verdict_card(frame, theme, "It.")
        dots, middle = figure.data
        assert sorted(dots.x) == sorted(VALUES)
        assert len(set(zip(dots.x, dots.y, strict=True))) == len(VALUES)  # none hides another
        assert middle.x[0] - middle.error_x.arrayminus[0] == pytest.approx(mean["low"])
        lines = [shape.x0 for shape in figure.layout.shapes if shape.type == "line"]
        assert lines == [bound for bound in (low, high) if np.isfinite(bound)]
        left, right = figure.layout.xaxis.range
        assert all(left < value < right for value in (*VALUES, *lines))


def test_a_stack_of_dots_has_its_number():
    figure = verdict_card(card_frame(claim()), "light", "It.")
    counted = [(one.x, one.text) for one in figure.layout.annotations if not one.text.startswith("counts")]
    assert counted == [(pytest.approx(0.2), "5")]


def test_the_caption_says_pairs_and_single_prompts_and_what_was_not_kept():
    pairs = Claim("A.", "holds", "1", interval=pairs_interval(np.full((4, 4), 0.9)), threshold=ABOVE)
    assert "6 pairs, n = 4 prompts" in caption_card(card_frame(pairs))
    one = caption_card(card_frame(claim(values=[0.3])))
    assert "one prompt gives 0.3 and no interval" in one
    bare = Claim("A.", "holds", "1", interval=Interval(0.5, 0.4, 0.6, 8), threshold=ABOVE)
    assert "were not kept (n = 8)" in caption_card(card_frame(bare))
    assert len(verdict_card(card_frame(bare), "light", "It.").data[0].x) == 0
    figure = verdict_card(card_frame(bare), "light", "It.")
    assert "single values were not kept" in [one.text for one in figure.layout.annotations]


def test_a_claim_without_numbers_has_no_figure():
    nothing = card_frame(Claim("A.", "holds", "1", threshold=ABOVE))
    assert nothing.empty and card_frame(Claim("A.", "holds", "1", interval=Interval(1, 0, 2, 8))).empty
    with pytest.raises(ValueError, match="no figure"):
        verdict_card(nothing, "light", "A.")


def test_the_paper_s_values_are_on_the_same_axis_under_their_own_name():
    frame = card_frame(claim(), "share of the heads", [0.9, 1.4])
    assert set(frame["number"]) == {"share of the heads"}
    figure = verdict_card(frame, "light", "It.")
    (paper,) = [trace for trace in figure.data if trace.name == "the paper"]
    assert list(paper.x) == [0.9, 1.4] and figure.layout.xaxis.range[1] > 1.4
    assert list(figure.layout.yaxis.ticktext) == ["each prompt", "mean, 95 %", "the paper"]
    assert figure.layout.xaxis.title.text == "share of the heads" and figure.layout.title.text == "It."
    assert "the paper's own 0.9 to 1.4" in caption_card(frame)


def test_values_without_prompts_are_dots_without_an_interval():
    settings = Claim("A.", "does not hold", "1", threshold=Threshold(1.0, "x"), units=(0.7, 1.2), printed=(2.2,))
    frame = card_frame(settings, "times", settings.printed)
    figure = verdict_card(frame, "light", "A.")
    assert [trace.name for trace in figure.data] == ["dots", "the paper"]
    assert figure.layout.yaxis.ticktext[0] == "each value"
    assert "One dot per measured value (2), no interval" in caption_card(frame)


@pytest.mark.parametrize("found", [
    Interval(0.5, -np.inf, np.inf, 8), Interval(0.5, 0.5, 0.5, 8, (0.5,) * 8), Interval(0.0, 0.0, 0.0, 8, (0.0,) * 8),
    Interval(0.3, -np.inf, 0.4, 1, (0.3,)),
])  # fmt: skip
def test_infinite_and_equal_values_leave_a_finite_axis(found: Interval):
    frame = card_frame(Claim("A.", "holds", "1", interval=found, threshold=Threshold(0.0, "x")))
    figure = verdict_card(frame, "light", "A.")
    left, right = figure.layout.xaxis.range
    assert np.isfinite([left, right]).all() and left < found.mean < right
    bar = next(trace for trace in figure.data if trace.name == "mean").error_x
    assert found.mean - bar.arrayminus[0] >= left - 1e-9 and found.mean + bar.array[0] <= right + 1e-9
    assert "inf" not in caption_card(frame)


def test_a_shipped_claim_keeps_the_values_behind_its_interval():
    judged = claim()
    again = parse_claim(json.loads(json.dumps(claim_values(judged))))
    assert again.interval is not None and again.interval.samples == tuple(VALUES)
