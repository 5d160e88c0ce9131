"""KVMerger explained on a dozen recorded tokens: three ways to compress them, and merging stage by stage."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.atlas.analysis.merging_sets import Walkthrough, key_error, quantize_channels, representing_keys
from kvlab.atlas.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.palette import DIVERGING, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import GRID, INK, QUIET, colour_bar, finish
from kvlab.views.base.words import number, percent, token_labels

KEPT = 3  # the paper's schematic keeps three states
STAGES = ("1 similarity", "2 sets", "3 pivots", "4 weights", "5 merged")
SAYS = (
    "cosine of every two keys",
    "similar consecutive keys form a set, from the last token back",
    "the most attended token of each set is its pivot",
    "weights are a Gaussian of the distance to the pivot",
    "one slot per set: the weighted mean of its keys and values",
)


def three_ways(walk: Walkthrough, texts: list[str], theme: Theme = "light") -> go.Figure:
    """The keys of a window (token x coordinate) as cached, quantised to 2 bits, evicted down to three, and merged."""
    panels = {
        "as cached": walk.keys,
        "quantised to 2 bits": quantize_channels(walk.keys),
        f"evicted: {KEPT} kept": evict_least_attended(walk),
        f"merged: {_slots(walk)} slots": walk.merged,
    }
    labels = token_labels(walk.tokens["position"], texts)
    figure = make_subplots(1, 4, shared_yaxes=True, column_titles=list(panels), horizontal_spacing=0.02)
    for column, (name, keys) in enumerate(panels.items(), start=1):
        figure.add_heatmap(
            z=keys.astype(np.float32),
            y=labels,
            coloraxis="coloraxis",
            row=1,
            col=column,
            hovertemplate=f"{name}<br>%{{y}}<br>coordinate %{{x}}: %{{z:.2f}}<extra></extra>",
        )
    limit = float(np.quantile(np.abs(walk.keys), 0.98))
    title = "Three ways to compress the keys of a few tokens"
    finish(figure, title=title, x="key coordinate", y="", theme=theme, height=430, legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category").update_xaxes(showgrid=False)
    figure.update_coloraxes(
        cmin=-limit, cmax=limit, colorscale=DIVERGING[theme], colorbar=colour_bar("key value", theme)
    )
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    return figure.update_layout(plot_bgcolor=mix(SURFACES[theme], GRID[theme], 0.5), margin={"t": 76})


def evict_least_attended(walk: Walkthrough, kept: int = KEPT) -> np.ndarray:
    """(tokens, head_dim) keys of the `kept` most attended tokens, NaN elsewhere."""
    gone = walk.tokens["attention"].rank(method="first", ascending=False).to_numpy() > kept
    return np.where(gone[:, None], np.nan, walk.keys)


@with_simple(simple.three_ways)
def caption_three_ways(walk: Walkthrough) -> str:
    """Kept slots and key error of each merging rule."""
    attention = walk.tokens["attention"]
    total = float(attention.sum())
    had = f"had {percent(float(attention.nlargest(KEPT).sum()) / total)} of" if total else "had none of"
    rounded = key_error(walk.keys, quantize_channels(walk.keys))
    merged = key_error(walk.keys, representing_keys(walk))
    return (
        f"Of {len(attention)} tokens, quantising keeps all, with keys {percent(rounded)} off on average; evicting "
        f"keeps {KEPT}, which {had} the window's attention; merging leaves {_slots(walk)} slots that "
        f"represent all, with keys {percent(merged)} off."
    )


def merging_pipeline(walk: Walkthrough, texts: list[str], theme: Theme = "light") -> go.Figure:
    """The five stages of merging as frames under a slider; it starts at the last stage."""
    labels = token_labels(walk.tokens["position"], texts)
    figure = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.52, 0.48], horizontal_spacing=0.03)
    stages = [_stage(walk, labels, stage, theme) for stage in range(len(STAGES))]
    for column, trace in zip((1, 1, 2), stages[-1], strict=True):
        figure.add_trace(trace, 1, column)
    finish(figure, title="Merging by stage", x="", y="", theme=theme, height=600, legend=False)
    ticks = {"tickvals": list(range(len(labels))), "ticktext": labels, "showgrid": False, "zeroline": False}
    figure.update_xaxes(**ticks, tickangle=-45, constrain="domain", constraintoward="right", col=1)
    figure.update_xaxes(visible=False, range=[0, 1.45], col=2)
    figure.update_yaxes(**ticks, range=[len(labels) - 0.5, -0.5])
    figure.update_yaxes(scaleanchor="x", constrain="domain", col=1)
    figure.add_annotation(_says(len(STAGES) - 1, theme))
    figure.frames = [
        go.Frame(data=traces, traces=[0, 1, 2], name=name, layout={"annotations": [_says(stage, theme)]})
        for stage, (name, traces) in enumerate(zip(STAGES, stages, strict=True))
    ]
    return figure.update_layout(sliders=[_slider(theme)], margin={"t": 84, "r": 24})


@with_simple(simple.merging_pipeline)
def caption_merging_pipeline(walk: Walkthrough) -> str:
    """Number of sets and the pivots' shares."""
    sets = walk.tokens.groupby("set")
    larger = sets.filter(lambda group: len(group) > 1)
    pivots = larger[larger["pivot"] == larger["position"]]["weight"]
    return (
        f"At a threshold of {number(walk.threshold)}, {len(walk.tokens)} tokens form {sets.ngroups} sets, "
        f"{larger['set'].nunique()} of them of more than one token; a pivot's share of the new key is "
        f"{percent(float(pivots.min()))} to {percent(float(pivots.max()))}."
    )


def _slots(walk: Walkthrough) -> int:
    return int(walk.tokens["set"].nunique())


def _stage(walk: Walkthrough, labels: list[str], stage: int, theme: Theme) -> list[dict]:
    heat = {
        "type": "heatmap",
        "z": walk.similarity.astype(np.float32),
        "zmin": -1,
        "zmax": 1,
        "showscale": False,
        "colorscale": DIVERGING[theme],
        "hovertemplate": "%{customdata}<br>cosine %{z:.3f}<extra></extra>",
        "customdata": [[f"{row}<br>{column}" for column in labels] for row in labels],
    }
    return [heat, _outlines(walk, stage, theme), _bars(walk, stage, theme)]


def _outlines(walk: Walkthrough, stage: int, theme: Theme) -> dict:
    """A square on the map for each set of more than one token, from the second stage on."""
    place = walk.tokens["position"].to_numpy() - walk.tokens["position"].iloc[0]
    corners_x: list[float | None] = []
    corners_y: list[float | None] = []
    for _, members in walk.tokens.groupby("set"):
        first = place[members.index[0]] - 0.5
        last = place[members.index[-1]] + 0.5
        if stage and len(members) > 1:
            corners_x += [first, last, last, first, first, None]
            corners_y += [first, first, last, last, first, None]
    line = {"color": pick(STATE_COLOURS["pivot"], theme), "width": 2.5}
    x = corners_x or [None]
    y = corners_y or [None]
    return {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": line, "hoverinfo": "skip"}


def _bars(walk: Walkthrough, stage: int, theme: Theme) -> dict:
    """Bars next to each token: none, its attention, its weight, or its slot."""
    tokens = walk.tokens
    is_pivot = tokens["pivot"] == tokens["position"]
    size = tokens.groupby("set")["position"].transform("size")
    attention = tokens["attention"] / tokens["attention"].max()
    share = tokens["attention"] / tokens["attention"].sum()
    slots = (size / size.max()).where(is_pivot, 0)
    lengths = (0 * attention, 0 * attention, attention, tokens["weight"], slots)[stage]
    words = [_bar_words(stage, *line) for line in zip(size, share, tokens["weight"], is_pivot, strict=True)]
    own = pick(STATE_COLOURS["pivot"], theme)
    other = pick(STATE_COLOURS["absorbed"], theme)
    colours = [own if pivot and stage > 1 else other for pivot in is_pivot]
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(tokens))),
        "x": lengths.round(4).tolist(),
        "text": words,
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colours},
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bar_words(stage: int, size: int, share: float, weight: float, is_pivot: bool) -> str:
    if stage == 1:
        return f"in a set of {size}" if size > 1 else "alone"
    if stage == 2:
        return f"{percent(share)} of attention{', pivot' if is_pivot else ''}"
    if stage == 3:
        return f"weight {number(weight, 2)}"
    held = f"slot of {size}" if size > 1 else "its own slot"
    return held if stage == 4 and is_pivot else ""


def _says(stage: int, theme: Theme) -> dict:
    return {
        "text": f"{STAGES[stage]}: {SAYS[stage]}",
        "x": 0,
        "xref": "paper",
        "y": 1.01,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": "left",
        "showarrow": False,
        "font": {"size": 13, "color": QUIET[theme]},
    }


def _slider(theme: Theme) -> dict:
    quick = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    return {
        "active": len(STAGES) - 1,
        "steps": [{"label": name, "method": "animate", "args": [[name], quick]} for name in STAGES],
        "x": 0,
        "len": 0.97,
        "y": 0,
        "yanchor": "top",
        "pad": {"t": 96, "b": 8},
        "currentvalue": {"visible": False},
        "font": {"size": 12, "color": INK[theme]},
        "bordercolor": GRID[theme],
    }
