"""What measuring costs, and where the bytes are: live, allocated but empty, and only needed for a moment."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.limits import BLOCK
from kvlab.figures.base.lines import add_area
from kvlab.figures.base.palette import HUES, Theme, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import byte_size, byte_unit, number, percent, plural

LAYERS = (
    ("live", "live: valid slots", "blue", ""),
    ("slack", "allocated, holding nothing", "orange", "/"),
    ("transient", "peak: needed for a moment", "red", "x"),
)
PACKED = (
    ("codes", "codes of packed slots", "blue", ""),
    ("scales", "their scales", "purple", "x"),
    ("native", "native slots, metadata and room", "orange", "/"),
)


def memory_stack(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live, allocated and peak bytes stacked over the steps under the uncompressed cache, from `analysis.cost`."""
    factor, unit = byte_unit(float(frame[["full_bytes", "peak_bytes"]].max().max()))
    figure = go.Figure()
    for column, name, hue, pattern in LAYERS:
        look = {"shape": pattern, "size": 6, "solidity": 0.3}
        hover = f"step %{{x}}: {name} %{{y:.4g}} {unit}"
        add_area(figure, frame["step"], frame[column] / factor, name, pick(HUES[hue], theme), hover, look)
    figure.add_scatter(
        x=frame["step"],
        y=frame["full_bytes"] / factor,
        name="logical: the whole text uncompressed",
        mode="lines",
        line={"color": pick(HUES["ink"], theme), "dash": "dash", "width": 2},
        hovertemplate=f"step %{{x}}: logical %{{y:.4g}} {unit}<extra></extra>",
    )
    return finish(figure, title="Where the bytes are", x="step", y=f"all layers ({unit})", theme=theme, height=420)


def read_memory_stack(frame: pd.DataFrame) -> str:
    """What compression freed at the end, and what the peak was, in words."""
    last, peak = frame.iloc[-1], frame["peak_bytes"].max()
    freed = 1 - last["allocated_bytes"] / last["full_bytes"]
    whole = f"the {byte_size(last['full_bytes'])} of the whole text"
    told = (
        f"{percent(freed)} of {whole} are really freed"
        if freed >= 0
        else f"{percent(-freed)} more than {whole} is held"
    )
    return f"At the end {told}; {_free_words(last, float(last['allocated_bytes']))} The peak was {byte_size(peak)}."


def _free_words(line: pd.Series, allocated: float) -> str:
    """What of the allocated bytes holds nothing: the room to grow, beside what a block costs, and the padding."""
    if not line["slack"] or not allocated:
        return "all that is allocated is in use."
    return (
        f"{percent(line['slack'] / allocated)} of what is allocated holds nothing: {byte_size(line['room'])} are room "
        f"to grow (a block of {BLOCK} slots a head, {byte_size(line['block'])}, at most), {byte_size(line['padding'])} "
        f"are padding ({percent(line['padding'] / line['live'])} of the live bytes)."
    )


def layer_bytes(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Live and allocated bytes of every layer after one step, stacked, beside the layer's uncompressed bytes."""
    factor, unit = byte_unit(float(frame["full"].max()))
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
    figure.add_scatter(
        x=frame["full"] / factor,
        y=frame["layer"],
        name="uncompressed",
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 18, "color": pick(HUES["ink"], theme), "line": {"width": 2}},
        hovertemplate=f"layer %{{y}}: uncompressed %{{x:.4g}} {unit}<extra></extra>",
    )
    finish(figure, title="Bytes of each layer", x=f"bytes ({unit})", y="layer", theme=theme)
    figure.update_layout(barmode="stack")
    return figure.update_yaxes(dtick=max(1, len(frame) // 16), autorange="reversed")


def read_layer_bytes(frame: pd.DataFrame) -> str:
    """The largest layer in words."""
    sizes = frame[["live", "slack"]].sum(axis=1)
    top, whole = frame.loc[sizes.idxmax()], float(sizes.max())
    if _is_packed(frame):
        return (
            f"Layer {int(top['layer'])} takes most: {byte_size(whole)} of {byte_size(top['full'])} uncompressed, of it "
            f"{percent(top['codes'] / whole)} codes, {percent(top['scales'] / whole)} their scales, and the rest "
            "native slots, metadata and room."
        )
    return (
        f"Layer {int(top['layer'])} takes most: {byte_size(whole)} of {byte_size(top['full'])} uncompressed; "
        f"{_free_words(top, whole)}"
    )


def _is_packed(frame: pd.DataFrame) -> bool:
    return "codes" in frame and bool(frame["codes"].notna().any())


def instrument_cost(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Decode rate with recording off and on of each run, from `analysis.cost.instrument_cost`.

    A bar over one reading, or readings that lie far apart, is cross-hatched; the line on it is the readings' range.
    """
    figure = go.Figure()
    bare = frame["doubt"] == ""
    spread = {
        "type": "data", "symmetric": False, "array": frame["off_high"] - frame["off"],
        "arrayminus": frame["off"] - frame["off_low"], "thickness": 1.2, "width": 4,
    }  # fmt: skip
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
            hovertemplate=f"%{{y}}, {name}: %{{x:.4g}} tokens a second%{{customdata}}<extra></extra>",
        )
    height = 150 + 46 * len(frame)
    finish(figure, title="Decode rate, recording off and on", x="tokens a second", y="run", theme=theme, height=height)
    return figure.update_yaxes(autorange="reversed").update_layout(barmode="group")


def read_instrument_cost(frame: pd.DataFrame) -> str:
    """The overhead in words, where readings bear it."""
    known = frame.dropna(subset=["overhead"])
    if known.empty:
        return f"None of {plural(len(frame), 'run')} timed its recorded pass: older runs did not."
    sure = known[known["doubt"] == ""]
    if sure.empty:
        return (
            f"What recording costs is not told: {' or '.join(known['doubt'].unique())} in {len(known)} of "
            f"{plural(len(frame), 'run')} (cross-hatched). The command kvlab bench overhead measures it in turns."
        )
    low, high = sure["overhead"].min(), sure["overhead"].max()
    span = f"{number(low)}" if number(low) == number(high) else f"{number(low)} to {number(high)}"
    return (
        f"A recorded step, read once, takes {span} times as long as a bare one in {plural(len(sure), 'run')} of "
        f"{len(frame)}; every tokens-a-second figure in kvlab is of the bare pass."
    )
