"""The river of merges into one slot."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.palette import STATE_COLOURS, Theme, mix, pick
from kvlab.figures.palette import SURFACES as GROUND
from kvlab.figures.template import finish
from kvlab.figures.words import number, plural, token_label


def lineage_river(
    frame: pd.DataFrame, slot: int, slot_text: str, theme: Theme = "light", width: str = "votes"
) -> go.Figure:
    """Which tokens flowed into a slot, from `analysis.lineage.tree.lineage_tree`.

    Width is the tokens carried over, or with `width="flow"` value weight x attention (`influence.weighted_tree`).
    """
    positions = list(dict.fromkeys([slot, *frame["target"], *frame["source"]]))
    texts = {slot: slot_text, **dict(zip(frame["target"], frame["target_text"], strict=True))}
    texts |= dict(zip(frame["source"], frame["source_text"], strict=True))
    place = {position: index for index, position in enumerate(positions)}
    pivot, absorbed = pick(STATE_COLOURS["pivot"], theme), pick(STATE_COLOURS["absorbed"], theme)
    targets = {slot, *frame["target"]}
    river = go.Sankey(
        arrangement="snap",
        node={
            "label": [token_label(position, texts[position], 16) for position in positions],
            "color": [pivot if position in targets else absorbed for position in positions],
            "pad": 14,  # a line of text: most sources are thinner than their name
            "thickness": 12,
            "line": {"width": 0},
            "hovertemplate": "%{label}<extra></extra>",
        },
        link={
            "source": frame["source"].map(place).tolist(),
            "target": frame["target"].map(place).tolist(),
            "value": _widths(frame, width).tolist(),
            "color": mix(absorbed, GROUND[theme], 0.45),
            "customdata": [_merge(row) for row in frame.itertuples()],
            "hovertemplate": "%{source.label} → %{target.label}<br>%{customdata}<extra></extra>",
        },
    )
    figure = go.Figure(river)
    height = max(240, 90 + 22 * len(frame))
    finish(
        figure, title=f"What flowed into slot {slot}", x="", y="", theme=theme, height=min(900, height), legend=False
    )
    return figure.update_layout(margin={"l": 12, "r": 12, "t": 46, "b": 16})


def _widths(frame: pd.DataFrame, width: str) -> pd.Series:
    if width == "votes":
        return frame["votes"].clip(lower=1)
    flow = frame["flow"].fillna(0.0)
    # A source that got no attention keeps a hair's breadth: it is there.
    return flow.clip(lower=float(flow.max()) * 0.01 or 1.0)


def read_lineage_river(frame: pd.DataFrame) -> str:
    """The slot's merges in words."""
    if frame.empty:
        return "Nothing has been merged into this slot: it stands for its own token."
    depth = int(frame["depth"].max())
    chain = f" over up to {depth} merges in a row" if depth > 1 else ""
    similar = frame["similarity"].mean()
    return (
        f"{plural(len(frame), 'token')} flowed into it{chain}, from step {frame['step'].min()} "
        f"to {frame['step'].max()}, with a mean key cosine of {number(similar, 2)}."
    )


def _merge(row: object) -> str:
    return (
        f"{row.kind} at step {row.step}, carrying {plural(row.votes, 'token')}<br>"  # type: ignore[attr-defined]
        f"key cosine {number(row.similarity)}, value weight {number(row.value_weight)}"  # type: ignore[attr-defined]
    )
