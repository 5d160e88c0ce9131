"""The same tokens under several methods, step by step, from recorded runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.analysis.lineage.states import STATES
from kvlab.figures.base.animation import frames_of, with_slider
from kvlab.figures.base.palette import STATE_NAMES, Theme, state_scale
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import percent, shown_of
from kvlab.figures.timeline import block_note, state_legend

MOST_FRAMES = 30


def fates(mosaics: Mapping[str, pd.DataFrame], theme: Theme = "light") -> go.Figure:
    """A strip of tokens per method (name: its `mosaic`, over the same tokens and steps); frames are steps."""
    names, first = list(mosaics), next(iter(mosaics.values()))
    steps = first.columns[np.unique(np.linspace(0, len(first.columns) - 1, MOST_FRAMES).round().astype(int))]
    strips = [np.stack([mosaics[name][step].to_numpy(np.uint8) for name in names]) for step in steps]
    seen = np.unique(np.concatenate([strip.ravel() for strip in strips]))
    heats = [_strip(strip, names, first.index.to_numpy(), theme) for strip in strips]
    figure = go.Figure([heats[-1], *state_legend(seen, theme)], frames=frames_of(steps, [[heat] for heat in heats]))
    finish(figure, title="The same tokens under each method", x="position in the text", y="method", theme=theme,
           height=160 + 62 * len(names))  # fmt: skip
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(showgrid=False)
    return with_slider(figure, "step ", len(steps) - 1, theme)


def read_fates(mosaics: Mapping[str, pd.DataFrame], counts: Mapping[str, pd.DataFrame]) -> str:
    """Tokens dropped and merged by each method at the last step, from the `state_counts` in `counts`."""
    parts = []
    for name, states in counts.items():
        last = states.iloc[-1]
        tokens = last[["unseen", "own", "pivot", "absorbed", "evicted"]].sum()
        shared = (last["pivot"] + last["absorbed"]) / tokens
        parts.append(f"{name} dropped {percent(last['evicted'] / tokens)} and merged {percent(shared)}")
    first = next(iter(mosaics.values()))
    step, steps = first.columns[-1], len(next(iter(counts.values())))
    return (
        f"After step {step}, of all tokens: {'; '.join(parts)}.{block_note(len(first), int(tokens))}"
        f"{shown_of(min(MOST_FRAMES, first.shape[1]), steps, 'step', 'evenly chosen')}"
    )


def _strip(codes: np.ndarray, names: list[str], positions: np.ndarray, theme: Theme) -> go.Heatmap:
    labels = np.array([STATE_NAMES[state] for state in STATES])
    return go.Heatmap(
        z=codes, x=positions, y=names, ygap=10, zmin=-0.5, zmax=len(STATES) - 0.5, colorscale=state_scale(theme),
        showscale=False, text=labels[codes], hovertemplate="%{y}, token %{x}: %{text}<extra></extra>",
    )  # fmt: skip
