"""Figures of evaluations and benchmarks: what every figure holds, and what only these have to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.bench.rows import Row, to_table
from kvlab.results import speed_tables
from kvlab.views import quality
from kvlab.views import speed as speeds

PLACE = "cpu: a processor · float32 · mini · batch 1 · 512 tokens"


def ranks() -> pd.DataFrame:
    lines = [
        ("needle", "h2o", 2, 0.2, 0.5), ("needle", "keepkv", 1, 0.7, 0.0),
        ("key_value", "h2o", 1, 0.5, 0.0), ("key_value", "keepkv", 1, 0.4, 0.1),
    ]  # fmt: skip
    frame = pd.DataFrame(lines, columns=["task", "arm", "rank", "score", "behind"])
    bounds = {f"{name}{bound}": frame[name] + by for name in ("score", "behind") for bound, by in
              (("_low", -0.1), ("_high", 0.1))}  # fmt: skip
    return frame.assign(method=frame["arm"], level=frame["rank"] == 1, prompts=20, **bounds)


def sizes() -> pd.DataFrame:
    h2o, keepkv = ("h2o", "20 %", 200.0, 0.3, False), ("keepkv", "20 %", 200.0, 0.6, True)
    lines = [("full", "all", 1000.0, 0.9, True), h2o, keepkv]
    frame = pd.DataFrame(lines, columns=["arm", "asked", "live_bytes", "score", "frontier"])
    bounds = {"score_low": frame["score"] - 0.1, "score_high": frame["score"] + 0.1}
    return frame.assign(method=frame["arm"], prompts=20, tasks=2, **bounds)


def benchmark() -> pd.DataFrame:
    """Rows of three caches, of which one did not fit."""

    def row(figure: str, method: str, value: float | None, **more: object) -> Row:
        budget = {} if method == "full" else {"budget": 0.2, "budget_unit": "fraction"}
        known = {"repeats": 5, "iqr": 0.1, "device": "cpu: a processor", "dtype": "float32"}
        return Row("decode", figure, "mini", method, 1, 512, "ms", median=value, **(known | budget | more))

    rows = [
        row("decode rate", "full", 100.0, bound=400.0, ratio_to_full=1.0, is_full=True),
        row("decode rate", "h2o", 220.0, bound=900.0, ratio_to_full=2.2),
        row("decode rate", "keepkv", None, status="oom", note="the model does not fit"),
        row("decode step", "h2o", 4.5),
    ]
    return to_table(rows).to_pandas().assign(name="made up")


def drawn(theme: str):
    rates = speed_tables.speed_table(benchmark(), "decode rate")
    table, size = ranks(), sizes()
    yield "ranks", quality.rank_table(table, theme), quality.caption_rank_table(table)
    yield "bytes", quality.score_against_bytes(size, theme), quality.caption_score_against_bytes(size)
    caption = speeds.caption_measured(rates, "tokens/s", True)
    yield "rates", speeds.measured(rates, "tokens/s", PLACE, theme, "Rate"), caption


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_is_named_read_and_not_empty(theme: str):
    for name, figure, caption in drawn(theme):
        assert figure.layout.title.text and figure.layout.xaxis.title.text and figure.layout.yaxis.title.text, name
        assert "nan" not in caption and "\n" not in caption, name
        assert any(trace.hoverinfo != "skip" for trace in figure.data), name


def test_what_was_measured_on_what_stands_on_every_figure_of_speed():
    for name, figure, _ in drawn("light"):
        assert (PLACE in figure.layout.xaxis.title.text) == (name == "rates")


def test_shared_ranks_are_marked_and_level_ones_are_bold():
    figure = quality.rank_table(ranks())
    words = dict(zip(zip(figure.data[1].x, figure.data[1].y, strict=True), figure.data[1].text, strict=True))
    assert words[("needle", "keepkv")] == "<b>1 · 0.7</b>"
    assert words[("needle", "h2o")] == "2 · 0.2"
    assert words[("key value", "h2o")] == "<b>1= · 0.5</b>"
    assert list(figure.data[2].customdata[0]) == ["needle", "h2o"], "a click says task and method"
    assert quality.caption_rank_table(ranks()).endswith("as far as these prompts can tell: keepkv.")


def test_the_first_is_darkest_where_more_is_better_and_where_less_is():
    frame = ranks().query("task == 'needle'")
    less = frame.assign(task="next_token_kl", score=1 - frame["score"])  # lower is better: the same order
    heat = quality.rank_table(pd.concat([frame, less], ignore_index=True)).data[0]
    assert (heat.z[:, 0] == heat.z[:, 1]).all()
    by_rank = dict(zip(frame["arm"], frame["rank"], strict=True))
    order = sorted(range(len(heat.y)), key=lambda place: -heat.z[place][0])
    assert [by_rank[str(heat.y[place])] for place in order] == sorted(by_rank.values())
    assert heat.zmin <= heat.z.min() and heat.z.max() <= heat.zmax == -1


def test_of_many_tasks_a_cell_has_the_rank_alone():
    two = ranks()
    many = pd.concat([two.assign(task=two["task"] + str(number)) for number in range(5)], ignore_index=True)
    figure = quality.rank_table(many)
    assert {text.replace("<b>", "").replace("</b>", "") for text in figure.data[1].text if text} == {"1", "1=", "2"}
    assert "score" not in figure.layout.xaxis.title.text


def ratios(figure: go.Figure) -> list[str]:
    """The words beside the bars, which stand clear of the error bars."""
    (words,) = (trace for trace in figure.data if trace.type == "scatter" and trace.mode == "text")
    return [text.strip() for text in words.text]


def test_bounds_ratios_and_reasons_are_drawn():
    frame = speed_tables.speed_table(benchmark(), "decode rate")
    figure = speeds.measured(frame, "tokens/s", PLACE)
    bounds = frame.set_index("method")["bound"]
    limit = f"{bounds['h2o'] / bounds['full']:.3g}"
    assert ratios(figure) == ["1 x full", f"2.2 x full, at most {limit} by bytes", "oom: the model does not fit"]
    assert np.nanmax(figure.data[2].x) == 900
    caption = speeds.caption_measured(frame, "tokens/s", True)
    assert caption == "Best of the compressed caches: h2o 20 %, better than the full cache."


def test_a_figure_measured_again_is_the_newest():
    rows = benchmark()
    again = rows[rows["method"] == "h2o"].assign(timestamp="2", median=7.0)
    both = pd.concat([rows.assign(timestamp="1"), again], ignore_index=True)
    assert set(speed_tables.rows_of_load(both, ("mini", 1, 512)).query("method == 'h2o'")["median"]) == {7.0}
    assert speed_tables.loads(both) == [("mini", 1, 512)]


def against(*full: tuple[str, float, bool], repeats: int = 5, spread: float = 0.1) -> pd.DataFrame:
    """Rows of h2o at 220 tokens a second beside full caches: name, rate, and whether it is the best."""
    best = next(rate for _, rate, is_full in full if is_full)
    known = {"repeats": repeats, "iqr": spread, "device": "cpu: a processor", "dtype": "float32"}
    rows = [
        Row("decode", "decode rate", "mini", name, 1, 512, "tokens/s", median=rate, ratio_to_full=rate / best,
            is_full=is_full, **known)
        for name, rate, is_full in full
    ]  # fmt: skip
    rows.append(
        Row("decode", "decode rate", "mini", "h2o", 1, 512, "tokens/s", budget=0.2, budget_unit="fraction",
            median=220.0, ratio_to_full=220.0 / best, **known)
    )  # fmt: skip
    return speed_tables.speed_table(to_table(rows).to_pandas().assign(name="made up"), "decode rate")


def test_the_reference_of_a_ratio_is_named_and_that_of_comparisons_stands_beside_it():
    frame = against(("full: kvlab", 200.0, False), ("full: transformers sdpa", 250.0, True))
    assert ratios(speeds.measured(frame, "tokens/s", PLACE))[-1] == "0.88 x transformers sdpa, 1.1 x kvlab"
    alone = against(("full: kvlab", 200.0, True))
    assert ratios(speeds.measured(alone, "tokens/s", PLACE))[-1] == "1.1 x kvlab"


@pytest.mark.parametrize(("repeats", "spread", "doubt"), [(1, 0.0, "one reading"), (5, 100.0, "busy machine")])
def test_one_repeat_or_scattered_ones_have_a_hatched_bar_and_no_ratio(repeats: int, spread: float, doubt: str):
    frame = against(("full: kvlab", 200.0, True), repeats=repeats, spread=spread)
    figure = speeds.measured(frame, "tokens/s", PLACE)
    bars = figure.data[0]
    assert ratios(figure) == [f"– ({doubt})"] * 2
    assert list(bars.marker.pattern.shape) == ["/", "/"]
    assert speeds.caption_measured(frame, "tokens/s", True) == "Nothing here can be compared with the full cache."
    counted = speeds.measured(frame, "bytes", PLACE).data[0]
    assert "/" not in list(counted.marker.pattern.shape), "bytes are the same however often they are counted"
