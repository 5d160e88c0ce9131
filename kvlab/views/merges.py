"""Merges: what left the cache, how similar merged keys were, votes, and attention before and after each merge."""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import add_points
from kvlab.views.base.palette import HUES, KIND_COLOURS, STATE_COLOURS, Theme, pick
from kvlab.views.base.template import finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import alike, comparison_words, near, number, part, plural, sentence, shown_of
from kvlab.views.frames.lineage import KINDS

EVENT_KINDS = KINDS[1:]
KIND_NAMES = {"evict": "evicted", "merge": "merged", "pool": "pooled"}
FLOOR = 1e-7
MOST_POINTS = 2000
BINS = 80
WIDE = 20.0  # largest over smallest count from which bars are on a log axis
PATTERNS = {"evict": "/", "merge": "", "pool": "x"}
OF_SLOTS = ("step", "layer", "head", "source", "target", "votes_after")


@view("events", title="Departures per step", needs="light", page="attention")
def events_over_steps_frame(run: Run, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
    """Events of a head, or of all, per step and kind: columns step, kind, count."""
    if run.record.level != "full":
        # Without events, from the counts in `steps`; pools count as merges.
        sums = run.select("steps", layer, head).groupby("step")[["evicted", "merged"]].sum()
        kinds = sums.rename(columns={"evicted": "evict", "merged": "merge"}).rename_axis(columns="kind")
        counts = kinds.stack().rename("count").reset_index()
        return counts[counts["count"] > 0].reset_index(drop=True)
    events = run.select("events", layer, head, ("step", "kind"), ordered=False)
    return events.groupby(["step", "kind"], observed=True).size().rename("count").reset_index()


@view("merged_share", title="Merged rather than evicted", needs="full", page="attention")
def events_by_head_frame(run: Run) -> pd.DataFrame:
    """Events per layer and KV head: columns layer, head, evict, merge, pool, merged_share (of all departures)."""
    events = run.select("events", columns=("layer", "head", "kind"), ordered=False)
    counts = events.groupby(["layer", "head", "kind"]).size().unstack("kind", fill_value=0)
    counts = counts.reindex(columns=list(EVENT_KINDS), fill_value=0)
    joined = counts["merge"] + counts["pool"]
    return counts.assign(merged_share=joined / counts.sum(axis=1)).reset_index().rename_axis(columns=None)


@view("merge_similarity", title="Similarity of merged keys", needs="full", page="attention")
def similarity_distribution_frame(run: Run, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
    """Histogram of source-target similarity over merges and pools: columns similarity (bin centre), kind, count."""
    events = run.select("events", layer, head, ("target", "similarity", "kind"), ordered=False)
    joined = events[events["target"] >= 0].dropna(subset=["similarity"])
    edges = np.linspace(-1, 1, BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    parts = []
    for kind, group in joined.groupby("kind", observed=True):
        counts = np.histogram(group["similarity"].clip(-1, 1), edges)[0]
        parts.append(pd.DataFrame({"similarity": centres, "kind": kind, "count": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["similarity", "kind", "count"])


def _slot_numbers(events: pd.DataFrame, column: str) -> np.ndarray:
    """A unique number per (layer, head, position), the same for a slot as source and as target."""
    layer, head, position = (events[name].to_numpy(np.int64) for name in ("layer", "head", column))
    heads = head.max(initial=0) + 1
    positions = events[["source", "target"]].max(axis=None) + 1 if len(events) else 1
    return (layer * heads + head) * positions + position


@view("votes", title="Votes of merged slots", needs="full", page="attention")
def votes_distribution_frame(run: Run, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
    """Number of slots per vote count at the end of the run: columns votes (rounded), slots."""
    events = run.select("events", layer, head, OF_SLOTS)
    # With events in step order, the last row of a target is its last merge.
    events = events.sort_values("step", kind="stable") if not events["step"].is_monotonic_increasing else events
    slots = _slot_numbers(events, "target")
    joined = (events["target"] >= 0).to_numpy()
    last = np.unique(slots[joined][::-1], return_index=True)[1]
    rows = np.flatnonzero(joined)[::-1][last]
    left = np.isin(slots[rows], _slot_numbers(events, "source"))
    votes = events["votes_after"].iloc[rows[~left]].round().astype(int)
    return votes.value_counts().sort_index().rename_axis("votes").rename("slots").reset_index()


@view("mass_balance", title="Attention of merged slots before and after the merge", needs="full", page="attention")
def mass_balance_frame(run: Run, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
    """Mass of each merged group before and after its step, the largest absolute sag first.

    Columns: step, layer, head, slot, sources, mass_before (sources and target together), mass_after, sag, votes. A
    group on the diagonal lost nothing; below it, the merge caused attention sag.
    """
    columns = (*OF_SLOTS, "mass_source", "mass_target", "mass_after", "sag")
    events = run.select("events", layer, head, columns)
    joined = events[events["target"] >= 0].dropna(subset=["mass_after"])
    slots = _slot_numbers(joined, "target")
    keys = joined["step"].to_numpy(np.int64) * (slots.max(initial=0) + 1) + slots
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    table = joined.iloc[first].rename(columns={"votes_after": "votes"})
    mass = joined["mass_source"].to_numpy(np.float64)
    before = np.bincount(group, weights=mass) + table["mass_target"]
    table = table.assign(sources=np.bincount(group), mass_before=before)
    order = table["sag"].abs().sort_values(ascending=False, kind="stable").index
    shown = ["step", "layer", "head", "target", "sources", "mass_before", "mass_after", "sag", "votes"]
    return table.loc[order, shown].rename(columns={"target": "slot"}).reset_index(drop=True)


@events_over_steps_frame.figure
def events_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Departures in each step by kind; on a log axis from 1 if the prefill dominates."""
    figure = go.Figure()
    for kind, group in frame.groupby("kind", sort=False):
        name = KIND_NAMES[str(kind)]
        colour = pick(KIND_COLOURS[str(kind)], theme)
        figure.add_bar(
            x=group["step"],
            y=group["count"],
            name=name,
            marker={"color": colour, "line": {"width": 0}, "pattern": {"shape": PATTERNS[str(kind)], "size": 4}},
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


@events_over_steps_frame.caption
def caption_events_over_steps(frame: pd.DataFrame) -> str:
    """When slots left the cache."""
    total = float(frame["count"].sum()) if len(frame) else 0.0
    if not total:
        return "Nothing left the cache."
    early = float(frame.loc[frame["step"] == 0, "count"].sum()) / total
    if early <= 0:
        return "All that left the cache left while text was written."
    if early >= 1:
        return "All that left the cache left when the prompt was compressed."
    return sentence(
        f"{part(early)} of what left the cache left when the prompt was compressed, the rest while text was written"
    )


@events_by_head_frame.figure
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


@events_by_head_frame.caption
def caption_events_by_head(frame: pd.DataFrame) -> str:
    """How much was merged rather than dropped."""
    total = frame[["evict", "merge", "pool"]].sum()
    if not total.sum():
        return "Nothing left the cache."
    share = float((total["merge"] + total["pool"]) / total.sum())
    if share <= 0:
        return "All that left the cache was dropped; nothing was merged."
    if share >= 1:
        return "All that left the cache was merged into other slots; nothing was dropped."
    return sentence(f"{part(share)} of what left the cache was merged into other slots, the rest was dropped")


@similarity_distribution_frame.figure
def similarity_distribution(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Distribution of the cosine of the two keys of each merge."""
    figure = go.Figure()
    for kind, group in frame.groupby("kind", sort=False):
        name = KIND_NAMES[str(kind)]
        colour = pick(KIND_COLOURS[str(kind)], theme)
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


@similarity_distribution_frame.caption
def caption_similarity_distribution(frame: pd.DataFrame) -> str:
    """How much alike merged keys are."""
    total = float(frame["count"].sum())
    if not total:
        return "How much alike the merged keys are was not recorded."
    mean = float((frame["similarity"] * frame["count"]).sum()) / total
    return f"On average, keys that are merged are {alike(mean)}."


@votes_distribution_frame.figure
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


@votes_distribution_frame.caption
def caption_votes_distribution(frame: pd.DataFrame) -> str:
    """How many tokens a merged slot stands for."""
    slots = float(frame["slots"].sum()) if len(frame) else 0.0
    if not slots:
        return "Every slot stands for a single token."
    mean = float((frame["votes"] * frame["slots"]).sum()) / slots
    most = float(frame["votes"].max())
    if near(mean, most):
        return f"Every merged slot stands for {plural(most, 'token')}."
    return f"A merged slot stands for {number(mean, 2)} tokens on average, the largest for {most:,.0f}."


@mass_balance_frame.figure
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


@mass_balance_frame.caption
def caption_mass_balance(frame: pd.DataFrame) -> str:
    """Whether merged slots lost attention, all together."""
    whole = float(frame["mass_before"].sum())
    lost = float(frame["sag"].sum())
    if not whole:
        return "The merged slots had no attention that could be lost."
    how = comparison_words(
        whole - lost, whole, "more attention than", "less attention than", "about the attention that", 0.01
    )
    few = shown_of(MOST_POINTS, len(frame), "merged slot", "the largest changes")
    return f"Right after the merge, all merged slots together have {how} their parts had before it.{few}"


def count_sentence(merged: float, groups: int, slots: int) -> str:
    """How three counts of merges are related: slots merged away, merges of a step into one slot, slots at the end."""
    return (
        f"{plural(merged, 'slot')} were merged into others, in {plural(groups, 'merge')} (all that one slot takes in "
        f"at one step); at the end {plural(slots, 'slot')} hold more than one token."
    )
