"""Merge events: counts, key similarity, votes per slot, and attention sag."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import add_points
from kvlab.views.base.palette import HUES, KIND_COLOURS, STATE_COLOURS, Theme, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.words import lost_share, number, percent, plural

KIND_NAMES = {"evict": "evicted", "merge": "merged", "pool": "pooled"}
FLOOR = 1e-7
MOST_POINTS = 2000
WIDE = 20.0  # largest over smallest count from which bars are on a log axis
PATTERNS = {"evict": "/", "merge": "", "pool": "x"}


def _by_kind(frame: pd.DataFrame, theme: Theme) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """(kind, name, colour, rows) of every kind of event in the frame."""
    for kind, group in frame.groupby("kind", sort=False):
        yield str(kind), KIND_NAMES[str(kind)], pick(KIND_COLOURS[str(kind)], theme), group


def events_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Departures in each step by kind; on a log axis from 1 if the prefill dominates."""
    figure = go.Figure()
    for kind, name, colour, group in _by_kind(frame, theme):
        figure.add_bar(
            x=group["step"],
            y=group["count"],
            name=name,
            marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": PATTERNS[kind], "size": 4}},
            hovertemplate=f"step %{{x}}: %{{y:,}} slots {name}<extra></extra>",
        )
    counts = frame.loc[frame["count"] > 0, "count"]
    wide = len(counts) > 0 and counts.max() > WIDE * counts.min()
    y = "slots (log)" if wide else "slots"
    finish(figure, title="Departures per step", x="step (0 is the prefill)", y=y, theme=theme)
    figure.update_layout(barmode="group", bargap=0.15, showlegend=True)
    if frame["step"].nunique() == 1:  # bars as wide as the page say nothing
        figure.update_xaxes(range=[frame["step"].min() - 3, frame["step"].min() + 3], tickvals=[frame["step"].min()])
    if wide:
        ends = [math.log10(0.8), math.log10(1.5 * counts.max())]
        return figure.update_yaxes(**log_axis(pd.Series([1, counts.max()])), range=ends)
    return figure.update_yaxes(rangemode="tozero")


@with_simple(simple.events_over_steps)
def caption_events_over_steps(frame: pd.DataFrame) -> str:
    """Totals in the prefill and while decoding."""
    if frame.empty:
        return "No slot left the cache in this run."
    first = frame["step"] == 0
    parts = []
    for kind, group in frame.groupby("kind", sort=False):
        early = group.loc[first, "count"].sum()
        late = group.loc[~first, "count"].sum()
        parts.append(f"{early:,} slots {KIND_NAMES[str(kind)]} in the prefill and {late:,} while decoding")
    return "; ".join(parts) + "."


def events_by_head(frame: pd.DataFrame, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """Share of departures that were merges or pools, by layer and KV head."""
    table = frame.pivot(index="layer", columns="head", values="merged_share")
    counts = frame.assign(total=frame[["evict", "merge", "pool"]].sum(axis=1)).pivot(
        index="layer", columns="head", values="total"
    )
    hover = "<br>%{z:.1f} % merged, of %{customdata:,} that left"
    return head_map(
        100 * table,
        "Merged rather than evicted",
        theme,
        bar="merged (% of slots that left)",
        hover=hover,
        high=100,
        customdata=counts.to_numpy(),
        focus=focus,
    )


@with_simple(simple.events_by_head)
def caption_events_by_head(frame: pd.DataFrame) -> str:
    """The overall share and its range over heads."""
    total = frame[["evict", "merge", "pool"]].sum()
    share = (total["merge"] + total["pool"]) / max(1, total.sum())
    low = frame["merged_share"].min()
    high = frame["merged_share"].max()
    spread = "the same in every head" if low == high else f"heads range from {percent(low)} to {percent(high)}"
    return f"{percent(share)} of the slots that left were merged into others; {spread}."


def similarity_distribution(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Distribution of the cosine of the two keys of each merge."""
    figure = go.Figure()
    for kind, name, colour, group in _by_kind(frame, theme):
        figure.add_scatter(
            x=group["similarity"],
            y=group["count"],
            name=name,
            mode="lines",
            fill="tozeroy",
            line={"shape": "hvh", "color": colour, "dash": "solid" if kind == "merge" else "dot"},
            hovertemplate="cosine %{x:.2f}: %{y:,} events<extra></extra>",
        )
    finish(figure, title="Similarity of merged keys", x="cosine of the two keys", y="events", theme=theme)
    shown = frame.loc[frame["count"] > 0, "similarity"]
    return figure.update_xaxes(range=[float(shown.min()) - 0.05, 1.0]) if len(shown) else figure


@with_simple(simple.similarity_distribution)
def caption_similarity_distribution(frame: pd.DataFrame) -> str:
    """Mean cosine and the share of dissimilar pairs."""
    total = frame["count"].sum()
    if not total:
        return "No merge recorded a similarity."
    mean = (frame["similarity"] * frame["count"]).sum() / total
    unlike = frame.loc[frame["similarity"] < 0.5, "count"].sum() / total
    return f"{plural(total, 'merge')}, mean cosine {number(mean, 2)}; {percent(unlike)} with a cosine below 0.5."


def votes_distribution(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Number of merged slots per vote count at the end of the run; points if the votes span decades."""
    low, high = (int(frame["votes"].min()), int(frame["votes"].max())) if len(frame) else (2, 2)
    colour = pick(STATE_COLOURS["pivot"], theme)
    hover = "%{y:,} slots with %{x} votes<extra></extra>"
    wide = high > 50 * low
    look = {"mode": "markers", "marker": {"color": colour, "size": 8}} if wide else {"marker": {"color": colour}}
    trace = (go.Scatter if wide else go.Bar)(x=frame["votes"], y=frame["slots"], hovertemplate=hover, **look)
    unit = "votes (tokens per slot)"
    figure = finish(go.Figure(trace), title="Votes of merged slots", x=unit, y="slots (log)", theme=theme, legend=False)
    if wide:
        figure.update_xaxes(**log_axis(frame["votes"]))
    elif high - low <= 20:
        figure.update_xaxes(dtick=1, range=[max(1.4, low - 0.6), high + 0.6])
    return figure.update_yaxes(**log_axis(frame["slots"]))


@with_simple(simple.votes_distribution)
def caption_votes_distribution(frame: pd.DataFrame) -> str:
    """Mean and largest votes."""
    slots = frame["slots"].sum()
    if not slots:
        return "No slot holds more than one token."
    mean = (frame["votes"] * frame["slots"]).sum() / slots
    largest = f"{frame['votes'].max():,}"
    return f"{plural(slots, 'merged slot')} with {number(mean)} votes each on average; the largest has {largest}."


def mass_balance(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention of each merged slot before and after its merge; below the diagonal it sagged.

    The first `MOST_POINTS` are drawn.
    """
    frame = frame.head(MOST_POINTS)
    before = frame["mass_before"].clip(lower=FLOOR)
    after = frame["mass_after"].clip(lower=FLOOR)
    low = float(before.min())
    high = float(before.max())
    columns = ["step", "layer", "head", "slot", "votes", "sag", "mass_before", "mass_after"]
    details = frame[columns].to_numpy(np.float32)
    figure = go.Figure()
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        name="nothing lost",
        hoverinfo="skip",
        line={"color": pick(HUES["grey"], theme), "dash": "dash", "width": 1},
    )
    hover = (
        "step %{customdata[0]}, layer %{customdata[1]}, head %{customdata[2]}, slot %{customdata[3]}<br>"
        "votes %{customdata[4]:.3g}<br>mass %{customdata[6]:.2e} → %{customdata[7]:.2e}, sag %{customdata[5]:.2e}"
    )
    colour = pick(STATE_COLOURS["pivot"], theme)
    add_points(figure, before, after, "a merged slot", colour, hover, size=5, marker_opacity=0.65, customdata=details)
    title = "Attention of merged slots before and after the merge"
    x = "mass before (sources and target, log)"
    finish(figure, title=title, x=x, y="mass after (log)", theme=theme, height=440)
    return figure.update_xaxes(**log_axis(before)).update_yaxes(**log_axis(after))


@with_simple(simple.mass_balance)
def caption_mass_balance(frame: pd.DataFrame) -> str:
    """How many merged slots lost and gained attention."""
    least = 0.01 * frame["mass_before"]
    sagged = float((frame["sag"] > least).mean())
    rose = float((-frame["sag"] > least).mean())
    whole = float(frame["mass_before"].sum())
    together = f"; in total {lost_share(float(frame['sag'].sum()) / whole)}" if whole else ""
    drawn = f" Showing the {MOST_POINTS:,} largest changes." if len(frame) > MOST_POINTS else ""
    return (
        f"Of {plural(len(frame), 'merged slot')} {percent(sagged)} lost more than 1 % of their attention in the "
        f"merge itself (below the dashed line) and {percent(rose)} gained as much{together}. The largest change of one "
        f"slot is {lost_share(float(frame['sag'].iloc[0]))} (share of its head's attention).{drawn} Values below "
        f"{number(FLOOR)} are drawn there."
    )
