"""The figure of a verdict's own numbers: a dot each, mean and interval, and the range that counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvlab.atlas.evidence import interval_of
from kvlab.atlas.figures.deciding_numbers import deciding_frame, deciding_numbers, read_deciding_numbers
from kvlab.atlas.shipped_exhibits import claim_values
from kvlab.common.intervals import Interval, mean_interval, mean_over_groups, pairs_interval
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
    frame = deciding_frame(judged)
    assert frame.loc[frame["part"] == "dot", "value"].tolist() == VALUES
    mean = frame[frame["part"] == "mean"].iloc[0]
    assert judged.interval is not None
    assert (mean["value"], mean["low"], mean["high"], mean["n"]) == (
        judged.interval.mean, judged.interval.low, judged.interval.high, 8,
    )  # fmt: skip
    assert frame[frame["part"] == "threshold"][["low", "high"]].to_numpy().tolist() == [[low, high]]
    reading = read_deciding_numbers(frame)
    assert "One dot per prompt (n = 8)" in reading and reading.endswith(f"Counts for the claim: {words}.")
    for theme in ("light", "dark"):
        figure = deciding_numbers(frame, theme)
        dots, middle = figure.data
        assert sorted(dots.x) == sorted(VALUES)
        assert len(set(zip(dots.x, dots.y, strict=True))) == len(VALUES)  # none hides another
        assert middle.x[0] - middle.error_x.arrayminus[0] == pytest.approx(mean["low"])
        lines = [shape.x0 for shape in figure.layout.shapes if shape.type == "line"]
        assert lines == [bound for bound in (low, high) if np.isfinite(bound)]
        left, right = figure.layout.xaxis.range
        assert all(left < value < right for value in (*VALUES, *lines))


def test_a_stack_of_dots_has_its_number():
    figure = deciding_numbers(deciding_frame(claim()), "light")
    assert [(one.x, one.text) for one in figure.layout.annotations] == [(pytest.approx(0.2), "5")]


def test_the_caption_says_pairs_and_single_prompts_and_what_was_not_kept():
    pairs = Claim("A.", "holds", "1", interval=pairs_interval(np.full((4, 4), 0.9)), threshold=ABOVE)
    assert "6 pairs, n = 4 prompts" in read_deciding_numbers(deciding_frame(pairs))
    one = read_deciding_numbers(deciding_frame(claim(values=[0.3])))
    assert "one prompt gives 0.3 and no interval" in one
    bare = Claim("A.", "holds", "1", interval=Interval(0.5, 0.4, 0.6, 8), threshold=ABOVE)
    assert "were not kept (n = 8)" in read_deciding_numbers(deciding_frame(bare))
    assert len(deciding_numbers(deciding_frame(bare), "light").data[0].x) == 0
    assert deciding_frame(Claim("A.", "holds", "1")).empty


def test_a_shipped_claim_keeps_the_values_behind_its_interval():
    judged = claim()
    again = parse_claim(json.loads(json.dumps(claim_values(judged))))
    assert again.interval is not None and again.interval.samples == tuple(VALUES)
