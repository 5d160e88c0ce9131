"""The river of merges into one slot."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.palette import STATE_COLOURS, Theme, mix, pick
from kvlab.figures.base.palette import SURFACES as GROUND
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import drawn_of, number, plural, token_label

MOST_RIBBONS = 60
REST = -1  # the node of all tokens that have no ribbon of their own
HAIR = 0.01  # of the widest ribbon: a source that got no attention is still there


def lineage_river(
    frame: pd.DataFrame, slot: int, slot_text: str, theme: Theme = "light", width: str = "votes"
) -> go.Figure:
    """Which tokens flowed into a slot, from `analysis.lineage.tree.lineage_tree`.

    Width is the tokens carried over, or with `width="flow"` value weight x attention (`influence.weighted_tree`). The
    `MOST_RIBBONS` widest have a ribbon of their own, with those that they flow through; the others share the last one.
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
        # What flows through another of the others is in that one's width already.
        outer = others[~others["target"].isin(others["source"])]
        words = f"{plural(len(others), 'token')} whose own ribbons would be narrower"
        links.loc[len(links)] = [REST, slot, float(_sizes(outer, width).sum()), words]
    place = {position: index for index, position in enumerate(positions)}
    pivot, absorbed = pick(STATE_COLOURS["pivot"], theme), pick(STATE_COLOURS["absorbed"], theme)
    targets = {slot, *shown["target"]}
    river = go.Sankey(
        arrangement="snap",
        node={
            "label": labels,
            "color": [pivot if position in targets else absorbed for position in positions],
            "pad": 14,  # a line of text: most sources are thinner than their name
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
    finish(
        figure, title=f"What flowed into slot {slot}", x="", y="", theme=theme, height=min(1200, height), legend=False
    )
    return figure.update_layout(margin={"l": 12, "r": 12, "t": 46, "b": 16})


def _sizes(frame: pd.DataFrame, width: str) -> pd.Series:
    return (frame["votes"] if width == "votes" else frame["flow"]).astype(float).fillna(0.0)


def _widest(frame: pd.DataFrame, width: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows with a ribbon of their own, and the others; a row comes with all that it flows through."""
    if len(frame) <= MOST_RIBBONS:
        return frame, frame.iloc[:0]
    sizes = dict(zip(frame["source"], _sizes(frame, width), strict=True))
    # From the far ends on, so that each source counts for the widest that flows through it.
    for row in frame.sort_values("depth", ascending=False, kind="stable").itertuples():
        if row.target in sizes:
            sizes[row.target] = max(sizes[row.target], sizes[row.source])
    ranked = frame.assign(size=frame["source"].map(sizes))
    order = ranked.sort_values(["size", "depth"], ascending=[False, True], kind="stable").index
    return frame.loc[sorted(order[:MOST_RIBBONS])], frame.loc[sorted(order[MOST_RIBBONS:])]


def read_lineage_river(frame: pd.DataFrame) -> str:
    """The slot's merges in words, all of them."""
    if frame.empty:
        return "Nothing has been merged into this slot: it stands for its own token."
    depth = int(frame["depth"].max())
    chain = f" over up to {depth} merges in a row" if depth > 1 else ""
    similar = frame["similarity"].mean()
    drawn = drawn_of(MOST_RIBBONS, len(frame), "token", "the widest; the last ribbon is all others")
    return (
        f"{plural(len(frame), 'token')} flowed into it{chain}, from step {frame['step'].min()} "
        f"to {frame['step'].max()}, with a mean key cosine of {number(similar, 2)}; with its own it stands for "
        f"{len(frame) + 1:,}.{drawn}"
    )


def _merge(row: object) -> str:
    return (
        f"{row.kind} at step {row.step}, carrying {plural(row.votes, 'token')}<br>"  # type: ignore[attr-defined]
        f"key cosine {number(row.similarity)}, value weight {number(row.value_weight)}"  # type: ignore[attr-defined]
    )
