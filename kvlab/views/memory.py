"""Bytes and slots of one run: by use, by layer and by head; and the cost of recording."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.table_growth import BLOCK
from kvlab.trace.reader import Run
from kvlab.trace.schema import RunRecord
from kvlab.views.base import words
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_line, add_lines, add_points
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.template import INK, MARK, axis_height, finish, layer_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import byte_size, byte_unit, near, number, part, percent, sentence, some_of
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.memory import budgets_by_layer, full_bytes_per_token, over_steps
from kvlab.views.frames.speed import speed_of

LINES = (
    Line("full_bytes", "uncompressed", "ink", "solid"),
    Line("peak_bytes", "peak", "red", "dot"),
    Line("allocated_bytes", "allocated", "orange", "dash"),
    Line("live_bytes", "live", "blue", "solid"),
)
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


def memory_stack_frame(memory: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """`memory.over_steps` as a stack: live, slack (allocated but not live), transient (peak beyond allocated).

    `block` is a block of slots per head; `room` the slack within it, layer by layer, for growth; `padding` the rest.
    """
    table = over_steps(memory, record)
    parts = pd.DataFrame({"step": memory["step"], **_slack(memory)}).groupby("step").sum().reset_index(drop=True)
    transient = table["peak_bytes"] - table["allocated_bytes"]
    return table.assign(live=table["live_bytes"], transient=transient, **dict(parts.items()))


def _slack(memory: pd.DataFrame) -> dict[str, pd.Series]:
    """The slack columns per row (step and layer) in bytes; without slot counts all slack is padding."""
    slack = (memory["allocated_bytes"] - memory["live_bytes"]).clip(lower=0)
    slots = memory["live_slots"] if "live_slots" in memory else pd.Series(0.0, memory.index)
    block = (BLOCK * memory["live_bytes"] / slots.where(slots > 0)).fillna(0)
    room = np.minimum(slack, block)
    return {"slack": slack, "block": block, "room": room, "padding": slack - room}


@view("recording_cost", title="Decode rate, recording off and on", page="cost")
def instrument_cost_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run, not rounded: label, level, and decode rates without and with recording.

    `off` is the median of the unrecorded readings, between `off_low` and `off_high`; `recorded` adds the recording
    to the first of them; `overhead` is how many times longer a recorded step takes, and `doubt` why that is unreliable,
    or "". NaN if a pass was not timed.
    """
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        bare = speed_of(run.record).launched
        recorded = run.record.recorded_tokens_per_second
        row = {"label": label, "level": run.record.level, "off": bare.rate, "recorded": recorded}
        row |= {"off_low": min(bare.readings, default=None), "off_high": max(bare.readings, default=None)}
        rows.append(row | {"overhead": bare.rate / recorded if bare.rate and recorded else None, "doubt": bare.doubt})
    numbers = ("off", "off_low", "off_high", "recorded", "overhead")
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))


memory_by_use = view("memory", title="Bytes by use", needs="light", page="cost", by_step=True)(
    lambda run: memory_stack_frame(run.memory, run.record)
)
memory_by_step = view("memory_lines", title="Bytes of the cache", needs="light", page="cost", by_step=True)(
    lambda run: over_steps(run.memory, run.record)
)
slots_of_heads = view("slots_by_head", title="Slots of each head", needs="light", page="attention")(
    lambda run, step=None: budgets_by_layer(run.steps, step)
)


@view("layer_bytes", title="Bytes of each layer", needs="light", page="cost")
def memory_by_layer(run: Run, step: int = 0) -> pd.DataFrame:
    """Bytes of every layer after `step`: columns layer, live, full (computed) and those of the slack.

    For a layer with quantised slots also codes, scales and native (everything else allocated); else NaN.
    """
    here = run.memory[run.memory["step"] == step]
    full = here["logical_tokens"] * full_bytes_per_token(run.record)
    table = {"layer": here["layer"], "live": here["live_bytes"], **_slack(here), "full": full}
    if "codes_bytes" in here:
        codes, scales = (here[name].astype(float) for name in ("codes_bytes", "scales_bytes"))
        table |= {"codes": codes, "scales": scales, "native": here["allocated_bytes"] - codes - scales}
    return pd.DataFrame(table).reset_index(drop=True)


@memory_by_step.figure
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


@memory_by_step.caption
def caption_memory_over_steps(frame: pd.DataFrame) -> str:
    """What the cache takes at the end."""
    last = frame.iloc[-1]
    return f"At the end, the cache takes {words.memory_share(last['allocated_bytes'] / last['full_bytes'])}."


@slots_of_heads.figure
def slots_by_head(
    frame: pd.DataFrame, theme: Theme = "light", focus: Place | None = None, moment: str = "at the last step"
) -> go.Figure:
    """Live slots by layer and KV head, from `memory.budgets_by_layer`; `moment` names the step."""
    table = frame.pivot(index="layer", columns="head", values="live_slots")
    high = float(frame["live_slots"].max())
    hover = ": %{z:,} slots"
    return head_map(table, f"Slots of each head {moment}", theme, bar="live slots", hover=hover, high=high, focus=focus)


@slots_of_heads.caption
def caption_slots_by_head(frame: pd.DataFrame) -> str:
    """Whether heads hold equally much, and how much of the text."""
    slots = frame["live_slots"]
    share = part(float(frame["share"].mean()))
    if slots.min() == slots.max():
        return f"Every head has slots for {share} of the tokens read."
    return f"On average a head has slots for {share} of the tokens read; some heads have more than others."


@memory_by_use.figure
def memory_stack(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live, allocated and peak bytes stacked over the steps, with the uncompressed cache, from `memory_stack_frame`."""
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


@memory_by_use.caption
def caption_memory_stack(frame: pd.DataFrame) -> str:
    """What the cache takes at the end, and a note where no peak was recorded."""
    peak = f" {PEAK_NOT_RECORDED}" if frame["peak_bytes"].isna().all() else ""
    return f"{caption_memory_over_steps(frame)}{peak}"


@memory_by_layer.figure
def layer_bytes(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live and allocated bytes of every layer after one step, stacked, with its uncompressed bytes."""
    factor, unit = byte_unit(float(frame["full"].max()))
    layers = frame["layer"].tolist()
    figure = go.Figure()
    packed = "codes" in frame and frame["codes"].notna().any()
    for column, name, hue, pattern in PACKED if packed else LAYERS[:2]:
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
        size=MARK
        * axis_height(layers)
        / (max(layers) - min(layers) + 1)
        / 1.4,  # plotly draws this symbol 1.4 times as long as its size
    )
    height = axis_height(layers) + 136
    finish(figure, title="Bytes of each layer", x=f"bytes ({unit})", y="layer", theme=theme, height=height)
    figure.update_layout(barmode="stack")
    largest = max(float(frame["full"].max()), float((frame["live"] + frame["slack"]).max()))
    return figure.update_yaxes(**layer_axis(layers)).update_xaxes(range=[0, 1.03 * largest / factor])


@memory_by_layer.caption
def caption_layer_bytes(frame: pd.DataFrame) -> str:
    """How much layers differ."""
    sizes = frame[["live", "slack"]].sum(axis=1)
    if len(frame) == 1:
        return "Only one layer was recorded."
    if near(float(sizes.min()), float(sizes.max())):
        return "All layers take the same memory."
    least = float(sizes.min())
    times = f"{number(float(sizes.max()) / least, 2)} times the memory of the smallest" if least else "all the memory"
    return f"The largest layer takes {times}."


@instrument_cost_frame.figure
def instrument_cost(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Decode rate of each run with and without recording, from `instrument_cost_frame`.

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


@instrument_cost_frame.caption
def caption_instrument_cost(frame: pd.DataFrame) -> str:
    """Whether recording slows runs down."""
    known = frame.dropna(subset=["overhead"])
    if known.empty:
        return "How much recording slows a run down was not measured."
    sure = known.loc[known["doubt"] == "", "overhead"]
    if sure.empty:
        return "How much recording slows a run down cannot be said from these timings."
    slow = int((sure > 1.05).sum())
    which = some_of(slow, len(sure), "run" if len(sure) == len(known) else "well-timed run")
    return sentence(f"recording slows down {which}; speeds are measured without it")


def verdict(frame: pd.DataFrame, label: str) -> str:
    """What a run holds at the end beside the uncompressed cache, and its peak; from `memory_stack_frame`."""
    last = frame.iloc[-1]
    held = f"{label} holds {byte_size(last['allocated_bytes'])} at the end"
    beside = (
        f"{percent(last['allocated_bytes'] / last['full_bytes'])} of the full cache's {byte_size(last['full_bytes'])}"
    )
    if frame["peak_bytes"].isna().all():
        return f"{held}, {beside}."
    top = frame.loc[frame["peak_bytes"].idxmax()]
    when = "while it read the prompt" if not top["step"] else f"at step {int(top['step'])}"
    return f"{held}, {beside}; {when} it held {byte_size(top['peak_bytes'])}."
