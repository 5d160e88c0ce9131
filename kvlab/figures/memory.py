"""Bytes and slots of one run: by use (live, slack and transient), by layer and by head; and the cost of recording."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import in_range
from kvlab.core.table_growth import BLOCK
from kvlab.figures.simple import memory as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_line, add_lines, add_points
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.template import INK, axis_height, finish, layer_axis, mark_size
from kvlab.views.base.words import byte_size, byte_unit, number, percent, plural

LINES = (
    Line("full_bytes", "uncompressed", "ink", "solid"),
    Line("peak_bytes", "peak", "red", "dot"),
    Line("allocated_bytes", "allocated", "orange", "dash"),
    Line("live_bytes", "live", "blue", "solid"),
)


def memory_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live, allocated and peak bytes with the uncompressed cache's, from `memory.over_steps`."""
    factor, unit = byte_unit(float(frame[["full_bytes", "peak_bytes"]].max().max()))
    figure = go.Figure()
    shown = frame[[line.column for line in LINES]] / factor
    mode = "lines" if len(frame) > 1 else "markers"
    hover = f"step %{{x}}: {{name}} %{{y:.4g}} {unit}"
    add_lines(figure, frame["step"], shown, LINES, theme, hover, mode=mode)
    finish(figure, title="Bytes of the cache", x="step", y=f"all layers ({unit})", theme=theme)
    return figure.update_yaxes(rangemode="tozero")


@with_simple(simple.memory_over_steps)
def caption_memory_over_steps(frame: pd.DataFrame) -> str:
    """The last step."""
    last = frame.iloc[-1]
    return (
        f"At the end {byte_size(last['live_bytes'])} are live and {byte_size(last['allocated_bytes'])} allocated, "
        f"{percent(last['allocated_bytes'] / last['full_bytes'])} of the "
        f"{byte_size(last['full_bytes'])} of the uncompressed cache."
    )


def slots_by_head(
    frame: pd.DataFrame, theme: Theme = "light", focus: Place | None = None, moment: str = "at the last step"
) -> go.Figure:
    """Live slots by layer and KV head, from `memory.budgets_by_layer`; `moment` names the step."""
    table = frame.pivot(index="layer", columns="head", values="live_slots")
    high = float(frame["live_slots"].max())
    hover = ": %{z:,} slots"
    return head_map(table, f"Slots of each head {moment}", theme, bar="live slots", hover=hover, high=high, focus=focus)


@with_simple(simple.slots_by_head)
def caption_slots_by_head(frame: pd.DataFrame) -> str:
    """Smallest, largest and mean."""
    slots = frame["live_slots"]
    kept = percent(frame["share"].mean())
    if slots.min() == slots.max():
        return f"All {plural(len(slots), 'head')} hold {slots.max():,.0f} slots, {kept} of the tokens read."
    mean, low, high = in_range(float(slots.mean()), int(slots.min()), int(slots.max()), "{:,.0f}".format)
    return f"Heads hold {low} to {high} slots, {mean} on average ({kept} of the tokens read)."


PEAK_NOT_RECORDED = (
    "How much was held at once within a step was not recorded by the version of kvlab that made this run: run it again "
    "to see it."
)
LAYERS = (
    ("live", "live: valid slots", "blue", ""),
    ("slack", "allocated but empty", "orange", "/"),
    ("transient", "transient peak", "red", "x"),
)
PACKED = (
    ("codes", "codes of quantised slots", "blue", ""),
    ("scales", "scales", "purple", "x"),
    ("native", "native slots, metadata and slack", "orange", "/"),
)


def memory_stack(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live, allocated and peak bytes stacked over the steps, with the uncompressed cache, from `cost.memory_stack`."""
    factor, unit = byte_unit(float(frame[["full_bytes", "peak_bytes"]].max().max()))
    figure = go.Figure()
    for column, name, hue, pattern in LAYERS:
        look = {"shape": pattern, "size": 6, "solidity": 0.3}
        hover = f"step %{{x}}: {name} %{{y:.4g}} {unit}"
        add_area(figure, frame["step"], frame[column] / factor, name, pick(HUES[hue], theme), hover, look)
    name = "logical: the whole text uncompressed"
    ink = pick(HUES["ink"], theme)
    hover = f"step %{{x}}: logical %{{y:.4g}} {unit}"
    add_line(figure, frame["step"], frame["full_bytes"] / factor, name, ink, "dash", hover, width=2)
    return finish(figure, title="Bytes by use", x="step", y=f"all layers ({unit})", theme=theme, height=420)


@with_simple(simple.memory_stack)
def caption_memory_stack(frame: pd.DataFrame) -> str:
    """Bytes freed at the end, and the peak with its step."""
    last = frame.iloc[-1]
    freed = 1 - last["allocated_bytes"] / last["full_bytes"]
    whole = f"the {byte_size(last['full_bytes'])} of the uncompressed cache"
    told = f"{percent(freed)} of {whole} are freed" if freed >= 0 else f"{percent(-freed)} more than {whole} is held"
    return f"At the end {told}; {_free_words(last, float(last['allocated_bytes']))} {_peak_words(frame)}"


def _peak_words(frame: pd.DataFrame) -> str:
    """The step that held most at once, if the run recorded it."""
    if frame["peak_bytes"].isna().all():
        return PEAK_NOT_RECORDED
    worst = frame.loc[frame["peak_bytes"].idxmax()]
    share = percent(worst["peak_bytes"] / worst["full_bytes"])
    step = int(worst["step"])
    when = "while the prompt was read" if step == 0 else f"at step {step}"
    return f"The peak was {byte_size(worst['peak_bytes'])} {when}, {share} of the uncompressed cache then."


def _free_words(line: pd.Series, allocated: float) -> str:
    """Share of the allocated bytes that is empty: slack of at most a block, and padding."""
    if not line["slack"] or not allocated:
        return "all allocated bytes are in use."
    return (
        f"{percent(line['slack'] / allocated)} of the allocated bytes are empty: {byte_size(line['room'])} reserved "
        f"for growth (at most a block of {BLOCK} slots per head, {byte_size(line['block'])}), "
        f"{byte_size(line['padding'])} padding ({percent(line['padding'] / line['live'])} of the live bytes)."
    )


def layer_bytes(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live and allocated bytes of every layer after one step, stacked, with its uncompressed bytes."""
    factor, unit = byte_unit(float(frame["full"].max()))
    layers = frame["layer"].tolist()
    figure = go.Figure()
    for column, name, hue, pattern in PACKED if _is_packed(frame) else LAYERS[:2]:
        marker = {"color": pick(HUES[hue], theme), "pattern": {"shape": pattern, "solidity": 0.3}, "line": {"width": 0}}
        figure.add_bar(
            x=frame[column] / factor,
            y=frame["layer"],
            name=name,
            orientation="h",
            marker=marker,
            hovertemplate=f"layer %{{y}}: {name} %{{x:.4g}} {unit}<extra></extra>",
        )
    add_points(
        figure,
        frame["full"] / factor,
        frame["layer"],
        "uncompressed",
        pick(HUES["ink"], theme),
        f"layer %{{y}}: uncompressed %{{x:.4g}} {unit}",
        marker_symbol="line-ns-open",
        marker_line_width=2,
        size=mark_size(layers) / 1.4,  # plotly draws this symbol 1.4 times as long as its size
    )
    height = axis_height(layers) + 136
    finish(figure, title="Bytes of each layer", x=f"bytes ({unit})", y="layer", theme=theme, height=height)
    figure.update_layout(barmode="stack")
    largest = max(float(frame["full"].max()), float((frame["live"] + frame["slack"]).max()))
    return figure.update_yaxes(**layer_axis(layers)).update_xaxes(range=[0, 1.03 * largest / factor])


@with_simple(simple.layer_bytes)
def caption_layer_bytes(frame: pd.DataFrame) -> str:
    """The largest layer."""
    sizes = frame[["live", "slack"]].sum(axis=1)
    top = frame.loc[sizes.idxmax()]
    whole = float(sizes.max())
    told = f"Layer {int(top['layer'])} takes most: {byte_size(whole)} of {byte_size(top['full'])} uncompressed"
    if not _is_packed(frame):
        return f"{told}; {_free_words(top, whole)}"
    parts = f"{percent(top['codes'] / whole)} codes, {percent(top['scales'] / whole)} scales"
    return f"{told}; {parts}, the rest native slots, metadata and slack."


def _is_packed(frame: pd.DataFrame) -> bool:
    return "codes" in frame and bool(frame["codes"].notna().any())


def instrument_cost(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Decode rate of each run with and without recording, from `cost.instrument_cost`.

    Bars with a doubtful rate are cross-hatched; error bars show the range of readings.
    """
    figure = go.Figure()
    bare = frame["doubt"] == ""
    spread = {
        "type": "data",
        "symmetric": False,
        "array": frame["off_high"] - frame["off"],
        "arrayminus": frame["off"] - frame["off_low"],
        "thickness": 1.2,
        "width": 4,
        "color": INK[theme],
    }
    for column, name, hue, patterns, bars in (
        ("off", "recording off", "blue", ["" if sure else "x" for sure in bare], spread),
        ("recorded", "recording on, one reading", "orange", ["/"] * len(frame), {}),
    ):
        figure.add_bar(
            y=frame["label"],
            x=frame[column],
            name=name,
            orientation="h",
            error_x=bars,
            customdata=[f", {doubt}" if doubt and column == "off" else "" for doubt in frame["doubt"]],
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": patterns, "solidity": 0.3}},
            hovertemplate=f"%{{y}}, {name}: %{{x:.4g}} tokens per second%{{customdata}}<extra></extra>",
        )
    title = "Decode rate, recording off and on"
    height = 150 + 46 * len(frame)
    finish(figure, title=title, x="tokens per second", y="run", theme=theme, height=height)
    return figure.update_yaxes(autorange="reversed").update_layout(barmode="group")


@with_simple(simple.instrument_cost)
def caption_instrument_cost(frame: pd.DataFrame) -> str:
    """The overhead, if the readings are reliable."""
    known = frame.dropna(subset=["overhead"])
    if known.empty:
        return f"None of {plural(len(frame), 'run')} timed its recorded pass (older runs did not)."
    sure = known[known["doubt"] == ""]
    if sure.empty:
        return (
            f"The cost of recording is uncertain: {' or '.join(known['doubt'].unique())} in {len(known)} of "
            f"{plural(len(frame), 'run')} (cross-hatched). Measure it with kvlab bench overhead."
        )
    low = sure["overhead"].min()
    high = sure["overhead"].max()
    span = f"{number(low)}" if number(low) == number(high) else f"{number(low)} to {number(high)}"
    return (
        f"A recorded step (one reading) takes {span} times as long as an unrecorded one in "
        f"{plural(len(sure), 'run')} of {len(frame)}; all decode rates in kvlab are measured without recording."
    )
