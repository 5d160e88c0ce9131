"""Sankey diagram of the merges into one slot."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import STATE_COLOURS, Theme, mix, pick
from kvlab.figures.base.palette import SURFACES as GROUND
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import number, plural, shown_of, token_label

MOST_RIBBONS = 60
REST = -1  # node of all tokens without a ribbon of their own
HAIR = 0.01  # minimum width relative to the widest ribbon


def merge_sankey(
    frame: pd.DataFrame, slot: int, slot_text: str, theme: Theme = "light", width: str = "votes"
) -> go.Figure:
    """Tokens merged into a slot, from `lineage.tables.lineage_tree`.

    Width is the number of tokens carried over, or with `width="flow"` value weight x attention
    (`influence.weighted_tree`). The `MOST_RIBBONS` widest have their own ribbon, including those they flow through; the
    rest share one.
    """
    shown, others = _widest(frame, width)
    positions = list(dict.fromkeys([slot, *shown["target"], *shown["source"]]))
    texts = {slot: slot_text, **dict(zip(shown["target"], shown["target_text"], strict=True))}
    texts |= dict(zip(shown["source"], shown["source_text"], strict=True))
    labels = [token_label(position, texts[position], 16) for position in positions]
    links = pd.DataFrame(
        {
            "source": shown["source"],
            "target": shown["target"],
            "width": _sizes(shown, width),
            "words": [_merge(row) for row in shown.itertuples()],
        }
    )
    if len(others):
        labels.append(plural(len(others), "other"))
        positions.append(REST)
        # Skip what flows through another of the others: it is already counted there.
        outer = others[~others["target"].isin(others["source"])]
        words = f"{plural(len(others), 'token')} with narrower ribbons"
        links.loc[len(links)] = [REST, slot, float(_sizes(outer, width).sum()), words]
    place = {position: index for index, position in enumerate(positions)}
    pivot, absorbed = pick(STATE_COLOURS["pivot"], theme), pick(STATE_COLOURS["absorbed"], theme)
    targets = {slot, *shown["target"]}
    river = go.Sankey(
        arrangement="snap",
        node={
            "label": labels,
            "color": [pivot if position in targets else absorbed for position in positions],
            "pad": 14,  # one line of text, as most sources are thinner than their label
            "thickness": 12,
            "line": {"width": 0},
            "hovertemplate": "%{label}<extra></extra>",
        },
        link={
            "source": links["source"].map(place).tolist(),
            "target": links["target"].map(place).tolist(),
            "value": links["width"].clip(lower=float(links["width"].max()) * HAIR or 1.0).tolist(),
            "color": mix(absorbed, GROUND[theme], 0.45),
            "customdata": links["words"].tolist(),
            "hovertemplate": "%{source.label} → %{target.label}<br>%{customdata}<extra></extra>",
        },
    )
    figure = go.Figure(river)
    height = max(240, 90 + 22 * len(links))
    finish(figure, title=f"Merges into slot {slot}", x="", y="", theme=theme, height=min(1200, height), legend=False)
    return figure.update_layout(margin={"l": 12, "r": 12, "t": 46, "b": 16})


def _sizes(frame: pd.DataFrame, width: str) -> pd.Series:
    return (frame["votes"] if width == "votes" else frame["flow"]).astype(float).fillna(0.0)


def _widest(frame: pd.DataFrame, width: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows with their own ribbon, and the others; a row comes with all rows it flows through."""
    if len(frame) <= MOST_RIBBONS:
        return frame, frame.iloc[:0]
    sizes = dict(zip(frame["source"], _sizes(frame, width), strict=True))
    # From the leaves inward, so that each source counts for the widest ribbon through it.
    for row in frame.sort_values("depth", ascending=False, kind="stable").itertuples():
        if row.target in sizes:
            sizes[row.target] = max(sizes[row.target], sizes[row.source])
    ranked = frame.assign(size=frame["source"].map(sizes))
    order = ranked.sort_values(["size", "depth"], ascending=[False, True], kind="stable").index
    return frame.loc[sorted(order[:MOST_RIBBONS])], frame.loc[sorted(order[MOST_RIBBONS:])]


def read_merge_sankey(frame: pd.DataFrame) -> str:
    """Summary of the slot's merges."""
    if frame.empty:
        return "Nothing was merged into this slot: it holds only its own token."
    depth = int(frame["depth"].max())
    chain = f" through up to {depth} consecutive merges" if depth > 1 else ""
    similar = frame["similarity"].mean()
    drawn = shown_of(MOST_RIBBONS, len(frame), "token", "the widest; the last ribbon is the rest")
    return (
        f"{plural(len(frame), 'token')} were merged into it{chain}, from step {frame['step'].min()} "
        f"to {frame['step'].max()}, with a mean key cosine of {number(similar, 2)}; including its own it represents "
        f"{len(frame) + 1:,}.{drawn}"
    )


def _merge(row: object) -> str:
    return (
        f"{row.kind} at step {row.step}, carrying {plural(row.votes, 'token')}<br>"  # type: ignore[attr-defined]
        f"key cosine {number(row.similarity)}, value weight {number(row.value_weight)}"  # type: ignore[attr-defined]
    )
