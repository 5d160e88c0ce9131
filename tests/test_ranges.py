"""A number is never printed outside the range it stands beside, nor a rate outside its readings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.cli.compare import _show
from kvlab.cli.options.tables import _mean as mean_on_command_line
from kvlab.common.formatting import in_range, mean_words, range_words, short, telling_digits
from kvlab.evaluation.results import table as eval_table
from kvlab.papers import paper_tables as paper_table_text
from kvlab.trace import open_run
from kvlab.views import repeats, scores
from kvlab.views.base.words import number, percent
from kvlab.views.frames.compare import headline
from kvlab.views.frames.speed import SCATTERED, Speed, ratio_text
from tests.synthetic.runs import write_synthetic_run

SHOWS: dict[str, Callable[[float], str]] = {
    "three digits": short, "number": number, "two digits": lambda value: number(value, 2), "whole": "{:.0f}".format,
    "two places": "{:.2f}".format, "thousands": "{:,.0f}".format, "percent": percent,
}  # fmt: skip
RATES = st.floats(0.05, 1e4, allow_nan=False)
POWER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def value_of(text: str) -> float:
    """The number a text stands for."""
    plain = text.replace(",", "").replace("%", "").strip()
    base, _, power = plain.partition("×10")
    return float(base) * 10.0 ** int(power.translate(POWER)) if power else float(base)


@pytest.mark.parametrize("name", SHOWS)
@given(st.lists(st.floats(1e-5, 1e7), min_size=1, max_size=6), st.booleans())
def test_a_point_is_printed_within_its_bounds(name: str, values: list[float], negative: bool) -> None:
    values = [-value for value in values] if negative and name != "percent" else values
    point = float(np.median(values))
    middle, low, high = map(value_of, in_range(point, min(values), max(values), SHOWS[name]))
    assert low <= middle <= high


@given(st.floats(-1e3, 1e3), st.floats(0, 1e-9), st.floats(0, 1e-9))
def test_bounds_that_rounding_put_on_the_wrong_side_are_moved(point: float, under: float, over: float) -> None:
    middle, low, high = map(float, in_range(point, point + over, point - under, "{:.12f}".format))
    assert low == middle == high


def test_a_range_and_an_interval_read_alike() -> None:
    assert range_words(0.25, 0.1, 0.4) == "0.25 (0.1 to 0.4)"
    assert mean_words(0.25, 0.1, 0.4, 20) == "0.25 (0.1 to 0.4, n = 20)"
    assert mean_words(0.25, float("nan"), float("nan"), 1) == "0.25 (one prompt)"


@given(st.lists(RATES, min_size=1, max_size=5))
def test_digits_tell_values_apart_where_they_can(values: list[float]) -> None:
    digits = telling_digits(values)
    assert 3 <= digits <= 6
    if digits < 6:
        assert all(
            np.isclose(one, other, rtol=1e-9, atol=0) or f"{one:.{digits}g}" != f"{other:.{digits}g}"
            for one in values
            for other in values
        )


def test_readings_that_hardly_differ_have_few_digits() -> None:
    readings = (16.27906, 16.2791, 16.279069)
    assert Speed("eager", readings, readings).words == "16.28 (16.28 to 16.28, eager)"


@given(st.lists(st.floats(0.8, 1.1), min_size=1, max_size=5), RATES)
def test_a_rate_is_within_its_readings_raw_and_as_printed(factors: list[float], rate: float) -> None:
    readings = tuple(rate * factor for factor in factors)
    speed = Speed("eager", readings, readings)
    said, columns = speed.words, speed.columns()
    assert speed.rate == np.median(readings)
    assert (columns["reading_low"], columns["reading_high"]) == (min(readings), max(readings))
    assert columns["reading_count"] == len(readings) and columns["speed"] == said
    if len(readings) == 1:
        assert said.startswith("– (one reading: ")
        return
    if speed.doubt == "busy machine":
        assert said.startswith("– (busy machine: ")
        return
    point, low, high = (float(found) for found in re.findall(r"[\d.]+(?:e\+\d+)?", said))
    assert low <= point <= high
    assert point == pytest.approx(speed.rate, rel=6e-3), "three digits at least"
    assert all(text in str(columns["readings"]) for text in (f"{low:.10g}", f"{high:.10g}"))


def test_rates_two_per_cent_apart_are_not_printed_alike() -> None:
    """What was printed as 100 (150-150) beside 200 (150-150)."""
    one, other = (Speed("eager", readings, readings) for readings in ((149.0, 148.0), (151.0, 152.0)))
    assert one.words == "148.5 (148 to 149, eager)"
    assert other.words == "151.5 (151 to 152, eager)"
    assert ratio_text(*other.ratio_to(one)) == "1.02 x"


@pytest.mark.parametrize(
    ("mine", "its", "doubt"),
    [
        ((30.0,), (20.0, 21.0), "one reading"),
        ((30.0, 31.0), (2.0,), "one reading of the full cache"),
        ((30.0, 60.0), (20.0, 21.0), "busy machine"),
        ((30.0, 31.0), (2.0, 20.0), "busy machine of the full cache"),
        ((30.0, 31.0), (20.0, 21.0), ""),
    ],
)
def test_a_ratio_from_one_reading_or_scattered_ones_is_a_dash_with_the_reason(
    mine: tuple[float, ...], its: tuple[float, ...], doubt: str
) -> None:
    speed, full = Speed("eager", mine, mine), Speed("eager", its, its)
    ratio, why = speed.ratio_to(full)
    assert why == doubt
    assert ratio == np.median(mine) / np.median(its), "the raw number stays, for CSV and JSON"
    assert ratio_text(ratio, doubt) == (f"– ({doubt})" if doubt else "1.49 x")


@given(st.floats(0.1, 3), st.floats(1, 1e3))
def test_the_flag_follows_the_spread_of_the_readings(spread: float, rate: float) -> None:
    speed = Speed("eager", (rate, rate * (1 + spread)), ())
    assert bool(speed.doubt) == (rate * spread / (rate * (1 + spread / 2)) > SCATTERED)


# every other place that prints a point beside its bounds


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_scores_with_intervals_are_within_them_everywhere(one: float, other: float, third: float) -> None:
    low, mean, high = sorted((one, other, third))
    line = {"score": mean, "score_low": low, "score_high": high, "samples": 9, "n": 9, "prompts": 9}
    kept = {"kept": mean, "kept_low": low, "kept_high": high}
    told = {
        "cell": range_words(mean, low, high),
        "line": scores.line_text(pd.Series(line)).split(", n")[0],
        "evaluation": eval_table._interval(pd.Series(line), "score", ".3f"),
        "kept": eval_table._cells(pd.Series({**line, **kept, "method": "full", "bytes": 1.0}), False, False)[1],
        "comparison": mean_on_command_line(line, "score"),
        "paper table": paper_table_text._mean(mean, low, high, 9, 2),
        "share": repeats.share_text(
            pd.Series({"right": 1, "n": 9, "share": mean, "share_low": low, "share_high": high})
        ).partition("(")[2],
    }
    for place, text in told.items():
        found = [value_of(part) for part in re.findall(r"\d[\d.,]*(?:e-\d+)?(?:×10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)?", text)]
        if len(found) == 3:
            assert found[1] <= found[0] <= found[2], (place, text)
        else:
            assert place == "kept" and len(found) == 1, (place, text)


def test_json_on_the_command_line_is_not_rounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pandas writes ten decimals unless it is told otherwise."""
    paths = [write_synthetic_run(tmp_path, method=method) for method in ("full", "keepkv")]
    _show(paths, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    expected = headline([open_run(path) for path in paths]).to_dict("records")
    for row, raw in zip(rows, expected, strict=True):
        for name in ("mean_kl", "tokens_per_second", "live_ratio", "extra_nll"):
            assert row[name] == pytest.approx(raw[name], rel=1e-14, abs=1e-14), name
