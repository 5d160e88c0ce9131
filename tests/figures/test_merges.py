"""Bars of departures start at a floor that can be read, and a line ends where the points do."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.views import merges


def departures(counts: dict[str, list[int]]) -> pd.DataFrame:
    lines = [
        {"step": step, "kind": kind, "count": count}
        for kind, row in counts.items()
        for step, count in enumerate(row)
        if count
    ]
    return pd.DataFrame(lines)


def test_counts_of_one_size_are_on_an_axis_from_zero() -> None:
    """On a log axis without a tick, 21,399 looked like a tenth of 22,570."""
    figure = merges.events_over_steps(departures({"evict": [21_399], "merge": [22_570]}))
    axis = figure.layout.yaxis
    assert axis.type != "log" and axis.rangemode == "tozero" and axis.title.text == "slots"
    low, high = figure.layout.xaxis.range
    assert low < 0 < high and high - low > 2, "bars of one step are not as wide as the page"


def test_a_prefill_that_dominates_is_on_a_log_axis_from_below_one() -> None:
    figure = merges.events_over_steps(departures({"evict": [5_000, 1, 2]}))
    axis = figure.layout.yaxis
    low, high = 10 ** np.array(axis.range)
    assert axis.type == "log" and low < 1 and high > 5_000


def test_the_line_of_no_loss_is_as_long_as_the_cloud() -> None:
    frame = pd.DataFrame(
        {
            "step": 0, "layer": 0, "head": 0, "slot": [1, 2], "votes": 2.0, "sag": 0.0,
            "mass_before": [1e-3, 1e-2], "mass_after": [1e-6, 2e-2],
        }
    )  # fmt: skip
    line = merges.mass_balance(frame).data[0]
    assert list(line.x) == [1e-3, 1e-2] == list(line.y)
