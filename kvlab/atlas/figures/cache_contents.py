"""Contents of a cache by step: residual, context and proximity slots, and the same tokens under several methods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.analysis.regions import REGIONS
from kvlab.atlas.figures.simple import budgets as simple
from kvlab.views.base.animation import frames_of, with_slider
from kvlab.views.base.caption import with_simple
from kvlab.views.base.cells import cell_text
from kvlab.views.base.palette import HUES, STATE_COLOURS, STATE_NAMES, Theme, pick, state_scale, stepped_scale
from kvlab.views.base.template import CLEAR, finish
from kvlab.views.base.words import percent, plural, shown_of, token_label
from kvlab.views.frames.lineage import STATES
from kvlab.views.timeline import block_note, state_legend

COLOURS = {
    "residual": STATE_COLOURS["pivot"],
    "context": STATE_COLOURS["kept"],
    "proximity": STATE_COLOURS["recent"],
}
MEANINGS = {
    "residual": "R: residual slot (number: tokens it holds)",
    "context": "C: context slot",
    "proximity": "P: proximity slot (recent)",
}


def cache_contents(frame: pd.DataFrame, texts: list[str], theme: Theme = "light") -> go.Figure:
    """Slots (rows) by steps (columns), from `regions.slots_by_step`; letters name the region as a second cue."""
    steps = frame["step"].unique()
    positions = np.sort(frame["position"].unique())
    codes, words = (np.full((len(positions), len(steps)), blank, object) for blank in (np.nan, ""))
    rows = np.searchsorted(positions, frame["position"])
    columns = np.searchsorted(steps, frame["step"])
    codes[rows, columns] = frame["region"].map(REGIONS.index)
    residual = frame["region"] == "residual"
    words[rows, columns] = ("R ×" + frame["votes"].astype(str)).where(residual, frame["region"].str[0].str.upper())
    tokens = frame.drop_duplicates("step")["tokens"]
    labels = [token_label(position, texts[position], 14) for position in positions]
    across = [f"step {step}<br>{count:,} tokens" for step, count in zip(steps, tokens, strict=True)]
    heat = go.Heatmap(
        z=codes.astype(np.float32),
        x=across,
        y=labels,
        xgap=3,
        ygap=2,
        zmin=-0.5,
        zmax=2.5,
        showscale=False,
        colorscale=stepped_scale([pick(COLOURS[region], theme) for region in REGIONS]),
        text=words,
        hovertemplate="%{x}<br>slot %{y}: %{text}<extra></extra>",
    )
    figure = go.Figure([heat, *_legend(theme), cell_text(heat, words)])
    finish(
        figure,
        title="Contents of the cache",
        x="step",
        y="slot (position, token)",
        theme=theme,
        height=170 + 20 * len(positions),
    )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, dtick=1)
    return figure.update_xaxes(side="bottom", type="category", showgrid=False)


@with_simple(simple.cache_contents)
def caption_cache_contents(frame: pd.DataFrame) -> str:
    """Tokens in residual slots at the last step, and the number of slots shown."""
    last = frame[frame["step"] == frame["step"].max()]
    residual = last[last["region"] == "residual"]
    held = f"{plural(len(residual), 'residual slot')} {'holds' if len(residual) == 1 else 'hold'} "
    drawn = frame["position"].nunique()
    every = int(frame["slots"].iloc[0])
    return (
        f"At step {last['step'].iloc[0]}, {held}{plural(residual['votes'].sum(), 'token')}"
        f"{' of those shown' if drawn < every else ''}.{shown_of(drawn, every, 'slot', 'those that move first')}"
    )


def regions_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Slots in each region over all steps, stacked, and tokens read, from `regions.regions_over_steps`."""
    figure = go.Figure()
    patterns = {"residual": "x", "context": "", "proximity": "/"}
    for region in REGIONS:
        colour = pick(COLOURS[region], theme)
        fill = {"shape": patterns[region], "size": 6, "fgcolor": CLEAR, "bgcolor": colour}
        figure.add_scatter(
            x=frame["step"],
            y=frame[region],
            name=region,
            stackgroup="slots",
            mode="lines",
            line={"width": 0.5, "color": colour},
            fillcolor=colour,
            fillpattern=fill if patterns[region] else None,
            hovertemplate=f"step %{{x}}: %{{y:,}} {region} slots<extra></extra>",
        )
    figure.add_scatter(
        x=frame["step"],
        y=frame["tokens"],
        name="tokens read",
        mode="lines",
        line={"color": pick(HUES["ink"], theme), "dash": "dot", "width": 1.6},
        hovertemplate="step %{x}: %{y:,} tokens<extra></extra>",
    )
    return finish(figure, title="Regions of the cache", x="step", y="slots, tokens", theme=theme)


@with_simple(simple.regions_over_steps)
def caption_regions_over_steps(frame: pd.DataFrame) -> str:
    """The split at the last step."""
    last = frame.iloc[-1]
    parts = ", ".join(f"{last[region]:,.0f} {region}" for region in REGIONS)
    return f"After step {last['step']:.0f}: {parts}; {percent(last['slots'] / last['tokens'])} of the tokens read."


def _legend(theme: Theme) -> list[go.Scatter]:
    """Empty traces for the legend, which heat maps do not have."""
    return [
        go.Scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=MEANINGS[region],
            hoverinfo="skip",
            marker={"size": 11, "symbol": "square", "color": pick(COLOURS[region], theme)},
        )
        for region in REGIONS
    ]


MOST_FRAMES = 30


def fates(mosaics: Mapping[str, pd.DataFrame], theme: Theme = "light") -> go.Figure:
    """A strip of tokens per method (name: its `mosaic`, over the same tokens and steps); frames are steps."""
    names = list(mosaics)
    first = next(iter(mosaics.values()))
    steps = first.columns[np.unique(np.linspace(0, len(first.columns) - 1, MOST_FRAMES).round().astype(int))]
    strips = [np.stack([mosaics[name][step].to_numpy(np.uint8) for name in names]) for step in steps]
    seen = np.unique(np.concatenate([strip.ravel() for strip in strips]))
    heats = [_strip(strip, names, first.index.to_numpy(), theme) for strip in strips]
    figure = go.Figure([heats[-1], *state_legend(seen, theme)], frames=frames_of(steps, [[heat] for heat in heats]))
    finish(
        figure,
        title="The same tokens under each method",
        x="position in the text",
        y="method",
        theme=theme,
        height=160 + 62 * len(names),
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(showgrid=False)
    return with_slider(figure, "step ", len(steps) - 1, theme)


@with_simple(simple.fates)
def caption_fates(mosaics: Mapping[str, pd.DataFrame], counts: Mapping[str, pd.DataFrame]) -> str:
    """Tokens dropped and merged by each method at the last step, from the `state_counts` in `counts`."""
    parts = []
    for name, states in counts.items():
        last = states.iloc[-1]
        tokens = last[["unseen", "own", "pivot", "absorbed", "evicted"]].sum()
        shared = (last["pivot"] + last["absorbed"]) / tokens
        parts.append(f"{name} dropped {percent(last['evicted'] / tokens)} and merged {percent(shared)}")
    first = next(iter(mosaics.values()))
    step = first.columns[-1]
    steps = len(next(iter(counts.values())))
    return (
        f"After step {step}, of all tokens: {'; '.join(parts)}.{block_note(len(first), int(tokens))}"
        f"{shown_of(min(MOST_FRAMES, first.shape[1]), steps, 'step', 'evenly chosen')}"
    )


def _strip(codes: np.ndarray, names: list[str], positions: np.ndarray, theme: Theme) -> go.Heatmap:
    labels = np.array([STATE_NAMES[state] for state in STATES])
    return go.Heatmap(
        z=codes,
        x=positions,
        y=names,
        ygap=10,
        zmin=-0.5,
        zmax=len(STATES) - 0.5,
        colorscale=state_scale(theme),
        showscale=False,
        text=labels[codes],
        hovertemplate="%{y}, token %{x}: %{text}<extra></extra>",
    )
