"""Merges into one slot: a Sankey diagram of its tokens, and how their share of the slot decays."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.end_labels import End, label_ends, labelled_height
from kvlab.views.base.lines import add_band, add_line
from kvlab.views.base.palette import DASHES, HUES, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import HEIGHT, MANY_LINES, PALE, finish, log_axis
from kvlab.views.base.words import number, percent, plural, shown_of, token_label, token_text

MOST_RIBBONS = 60
REST = -1  # node of all tokens without a ribbon of their own
WIDTHS = {"flow": "weight x attention", "votes": "tokens carried"}  # of a ribbon
HAIR = 0.01  # minimum width relative to the widest ribbon


def merge_sankey(
    frame: pd.DataFrame, slot: int, slot_text: str, theme: Theme = "light", width: str = "votes"
) -> go.Figure:
    """Tokens merged into a slot, from `frames.lineage.lineage_tree`.

    Width is the number of tokens carried over, or with `width="flow"` value weight x attention
    (`influence.weighted_tree`). The `MOST_RIBBONS` widest and those they flow through have ribbons; the rest share one.
    """
    shown, others = _widest(frame, width)
    positions = list(dict.fromkeys([slot, *shown["target"], *shown["source"]]))
    texts = {slot: slot_text, **dict(zip(shown["target"], shown["target_text"], strict=True))}
    texts |= dict(zip(shown["source"], shown["source_text"], strict=True))
    labels = [token_label(position, texts[position], 16) for position in positions]
    links = shown[["source", "target"]].assign(
        width=_sizes(shown, width), words=[_merge(row) for row in shown.to_dict("records")]
    )
    if len(others):
        labels.append(plural(len(others), "other"))
        positions.append(REST)
        # Skip what flows through another of the others: it is already counted there.
        outer = others[~others["target"].isin(others["source"])]
        words = f"{plural(len(others), 'token')} with narrower ribbons"
        links.loc[len(links)] = [REST, slot, float(_sizes(outer, width).sum()), words]
    place = {position: index for index, position in enumerate(positions)}
    pivot = pick(STATE_COLOURS["pivot"], theme)
    absorbed = pick(STATE_COLOURS["absorbed"], theme)
    targets = {slot, *shown["target"]}
    river = go.Sankey(
        arrangement="snap",
        node={
            "label": labels,
            "color": [pivot if position in targets else absorbed for position in positions],
            "pad": 20,  # one line of text, as most sources are thinner than their label
            "thickness": 12,
            "line": {"width": 0},
            "hovertemplate": "%{label}<extra></extra>",
        },
        link={
            "source": links["source"].map(place).tolist(),
            "target": links["target"].map(place).tolist(),
            "value": links["width"].clip(lower=float(links["width"].max()) * HAIR or 1.0).tolist(),
            "color": mix(absorbed, SURFACES[theme], 0.45),
            "customdata": links["words"].tolist(),
            "hovertemplate": "%{source.label} → %{target.label}<br>%{customdata}<extra></extra>",
        },
    )
    figure = go.Figure(river)
    height = max(240, 90 + 28 * len(links))
    title = f"Merges into slot {slot} (width: {WIDTHS[width]})"
    finish(figure, title=title, x="", y="", theme=theme, height=min(1400, height), legend=False)
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


@with_simple(simple.merge_sankey)
def caption_merge_sankey(frame: pd.DataFrame) -> str:
    """Summary of the slot's merges."""
    if frame.empty:
        return "Nothing was merged into this slot: it holds only its own token."
    depth = int(frame["depth"].max())
    chain = f" through up to {depth} consecutive merges" if depth > 1 else ""
    similar = frame["similarity"].mean()
    drawn = shown_of(MOST_RIBBONS, len(frame), "token", "the widest; the last ribbon is the rest")
    first = int(frame["step"].min())
    last = int(frame["step"].max())
    when = f"at step {first}" if first == last else f"from step {first} to {last}"
    were = "was" if len(frame) == 1 else "were"
    return (
        f"{plural(len(frame), 'token')} {were} merged into it{chain}, {when}, with a mean key cosine of "
        f"{number(similar, 2)}; including its own it represents {len(frame) + 1:,}.{drawn}"
    )


def _merge(row: dict[str, Any]) -> str:
    carried = f"{row['kind']} at step {row['step']}, carrying {plural(row['votes'], 'token')}"
    return f"{carried}<br>key cosine {number(row['similarity'])}, value weight {number(row['value_weight'])}"


HUE_ORDER = ("blue", "orange", "green", "purple", "red", "gold", "sky", "grey")
MOST_LINES = 12
LEAST = 1e-6  # share of a value that is drawn


def influence_decay(frame: pd.DataFrame, half: float, theme: Theme = "light") -> go.Figure:
    """Share of a token left in its slot by number of merges, from `influence.decay_by_merges`; `half` is marked."""
    colour = pick(HUES["purple"], theme)
    figure = go.Figure()
    add_band(figure, frame["merges"], frame["low"], frame["high"], mix(colour, SURFACES[theme], 0.75))
    figure.add_scatter(
        x=frame["merges"],
        y=frame["share"],
        name="median token (band: middle 50 %)",
        mode="lines+markers",
        line={"color": colour, "width": 2},
        customdata=frame["tokens"],
        hovertemplate="after %{x} merges: %{y:.3g} of the token left<br>%{customdata:,} cases<extra></extra>",
    )
    ink = pick(HUES["ink"], theme)
    ends = [frame["merges"].min(), frame["merges"].max()]
    figure.add_scatter(
        x=ends, y=[0.5, 0.5], name="half", mode="lines", line={"color": ink, "dash": "dot", "width": 1.2}
    )
    if math.isfinite(half):
        figure.add_vline(x=half, line={"color": ink, "dash": "dash", "width": 1.2})
    title = "What is left of a token in its slot"
    x = "merges its slot went through"
    finish(figure, title=title, x=x, y="share of the slot's value (log)", theme=theme)
    if ends[1] <= 20:
        figure.update_xaxes(dtick=1)
    return figure.update_yaxes(**log_axis(pd.concat([frame["low"], pd.Series([1.0, 0.4])]).clip(lower=1e-6)))


@with_simple(simple.influence_decay)
def caption_influence_decay(frame: pd.DataFrame, half: float) -> str:
    """The half-life."""
    last = frame.iloc[-1]
    rest = f"after {plural(last['merges'], 'merge')}, the most here, the median share is {percent(last['share'])}"
    if math.isinf(half):
        return f"More than half of a token always remains: {rest}."
    when = f"after {number(half, 2)} merges" if half >= 1 else "with its first merge"
    return f"Half of a token is gone {when}; {rest}."


def members_over_steps(frame: pd.DataFrame, slot: int, theme: Theme = "light") -> go.Figure:
    """Share of each token of a slot over the steps, from `influence.members_over_steps`.

    The first `MOST_LINES` tokens are drawn; among many, the token with the largest final share is in focus.
    """
    frame = frame[frame["token"].isin(frame["token"].unique()[:MOST_LINES])]
    figure = go.Figure()
    last = frame[frame["step"] == frame["step"].max()]
    ends = []
    focus = last.loc[last["share"].idxmax(), "token"] if len(last) else slot
    for index, (token, part) in enumerate(frame.groupby("token", sort=False)):
        name = token_label(int(token), part["text"].iloc[0], 14)
        pale = frame["token"].nunique() > MANY_LINES and token != focus
        colour = pick(HUES[HUE_ORDER[index % len(HUE_ORDER)]], theme)
        dash = DASHES[index % len(DASHES)]
        add_line(
            figure,
            part["step"],
            part["share"],
            name,
            colour,
            dash,
            f"{name}<br>step %{{x}}: %{{y:.3g}}",
            width=1.2 if pale else 2.4,
            line_shape="hv",
            opacity=PALE if pale else 1.0,
            mode="lines+markers" if len(part) < 3 else "lines",
        )
        end = f"{token} “{token_text(part['text'].iloc[0], 14)}”"  # escaped where it is drawn
        ends.append(End(end, float(part["step"].iloc[-1]), max(float(part["share"].iloc[-1]), LEAST), colour))
    title = f"Tokens represented by slot {slot}"
    height = labelled_height(len(ends), HEIGHT)
    finish(figure, title=title, x="step", y="share of the value (log)", theme=theme, height=height, legend=False)
    shares = frame["share"].clip(lower=LEAST)
    span = (math.log10(float(shares.min())) - 0.05, math.log10(float(shares.max())) + 0.05)
    return label_ends(figure.update_yaxes(**log_axis(shares)), ends, span, theme)


@with_simple(simple.members_over_steps)
def caption_members_over_steps(frame: pd.DataFrame) -> str:
    """The token with the largest share."""
    last = frame[frame["step"] == frame["step"].max()].sort_values("share", ascending=False)
    top = last.iloc[0]
    drawn = last["share"].iloc[:MOST_LINES].sum()
    few = shown_of(MOST_LINES, len(last), "token", f"which make up {percent(drawn)} of it")
    return (
        f"At step {int(top['step'])} token {int(top['token'])} is the largest part of the slot's value, "
        f"{percent(top['share'])} (by weight alone, without attention); its {plural(len(last), 'token')} "
        f"make up {percent(last['share'].sum())} of it.{few}"
    )
