"""One merge before and after, and effect of merging on attention by rule."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from kvlab.atlas.analysis.merge_effects import LEAST_MASS
from kvlab.atlas.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import Line, add_lines, add_points, hatch
from kvlab.views.base.palette import HUES, MASS_COLOURS, STATE_COLOURS, SURFACES, Theme, method_style, mix, pick
from kvlab.views.base.template import QUIET, finish
from kvlab.views.base.words import lost_share, number, percent, plural, token_label, visible

RECEIVED = (
    Line("true_mass", "with nothing dropped: all its tokens", "ink", "solid", "circle"),
    Line("mass", "the merged slot", "purple", "dash", "diamond"),
)
RULES = {
    "exact": "exact at this query",
    "grouped": "at this query, query heads share the slot",
    "predicted": "at predicted scores, exact for no query",
    "votes": "votes alone",
    "convex": "convex, no votes",
    "other": "another mass rule",
}


def where_attention_goes(frame: pd.DataFrame, place: str, theme: Theme = "light") -> go.Figure:
    """Destination of the attention on tokens without their own slot, from `merge_effects.where_attention_goes`."""
    figure = go.Figure()
    for column, name, key, pattern in (
        ("merged", "received by merged slots", "merged", ""),
        ("sag", "lost by sag (left: gained)", "sag", "x"),
        ("regret", "lost by eviction", "regret", "/"),
    ):
        colour = pick(MASS_COLOURS[key], theme)
        figure.add_bar(
            y=frame["label"],
            x=frame[column],
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": pattern, "size": 5}, "line": {"width": 0}},
            customdata=frame[["kept", "output_error", "votes"]].to_numpy(),
            hovertemplate=f"%{{y}}: {name} %{{x:.3%}}<br>tokens with their own slot %{{customdata[0]:.2%}}, output "
            "off by %{customdata[1]:.2%}, largest votes %{customdata[2]:.4g}<extra></extra>",
        )
    for row in frame.itertuples():
        figure.add_annotation(
            x=1,
            xref="paper",
            y=row.label,
            text=f" output off by {percent(row.output_error)}",
            showarrow=False,
            xanchor="left",
            font={"size": 11, "color": QUIET[theme]},
        )
    finish(
        figure,
        title=f"Attention to tokens that lost their own slot ({place})",
        x="share of attention, nothing dropped",
        y="",
        theme=theme,
        height=140 + 38 * len(frame),
    )
    figure.update_layout(barmode="relative", bargap=0.3, margin={"r": 160})
    return figure.update_yaxes(autorange="reversed").update_xaxes(tickformat=".3~p")


@with_simple(simple.where_attention_goes)
def caption_where_attention_goes(frame: pd.DataFrame) -> str:
    """The runs that lose least and most."""
    lost = frame.set_index("label")[["sag", "regret"]].sum(axis=1)
    full = frame[frame["method"] != "full"].set_index("label")
    lost = lost[full.index]
    return (
        f"At step {int(frame['step'].iloc[0])} this head loses least under {lost.abs().idxmin()} "
        f"({percent(lost[lost.abs().idxmin()])} of its attention, output off by "
        f"{percent(full['output_error'][lost.abs().idxmin()])}) and most under {lost.idxmax()} ({percent(lost.max())}, "
        f"output off by {percent(full['output_error'][lost.idxmax()])})."
    )


def slot_before_and_after(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """One slot per run: its attention after the merge relative to the sum of its parts', at the same query."""
    names = [
        f"{row.label}<br>step {row.step}, slot {row.slot}, {number(row.votes)} votes" for row in frame.itertuples()
    ]
    colours = (STATE_COLOURS["kept"], HUES["purple"], STATE_COLOURS["pivot"])
    own, absorbed, pivot = (pick(pair, theme) for pair in colours)
    whole = frame["own"] + frame["sources"]
    whole = whole.where(whole > 0)
    figure = go.Figure()
    for column, name, colour, pattern, group in (
        ("own", "the slot before", own, "", "before"),
        ("sources", "what was merged into it", absorbed, "/", "before"),
        ("after", "the merged slot after", pivot, "", "after"),
    ):
        figure.add_bar(
            y=names,
            x=frame[column] / whole,
            name=name,
            offsetgroup=group,
            orientation="h",
            base=frame["own"] / whole if column == "sources" else None,
            customdata=frame[[column, "perturbation"]].to_numpy(),
            marker={"color": colour, "pattern": hatch(pattern, colour, theme), "line": {"width": 0}},
            hovertemplate=f"%{{y}}<br>{name}: %{{customdata[0]:.3g}} of the attention<br>output of the head changed by "
            "%{customdata[1]:.2%} in this step<extra></extra>",
        )
    # Bars lie across, because the names of many runs have no room side by side.
    finish(
        figure,
        title="One slot before and after its merge",
        x="attention (parts = 100 %)",
        y="one merge of each run",
        theme=theme,
        height=150 + 44 * len(frame),
    )
    figure.update_yaxes(autorange="reversed", tickfont={"size": 11})
    return figure.update_layout(barmode="group", bargap=0.35).update_xaxes(tickformat=".0%")


@with_simple(simple.slot_before_and_after)
def caption_slot_before_and_after(frame: pd.DataFrame, step: int) -> str:
    """Attention that each run's slot lost or gained; `step` is the current step, other steps are mentioned."""
    changes = [
        f"{row.label} "
        + (lost_share(row.lost) if math.isfinite(row.lost) else "not defined, as its parts have no attention")
        for row in frame.itertuples()
    ]
    told = "Attention of the merged slot against the sum of its parts: " + ", ".join(changes) + "."
    elsewhere = [f"{row.label} of step {row.step}" for row in frame.itertuples() if row.step != step]
    if elsewhere:
        told += f" Without a merge of at least {percent(LEAST_MASS)} of the head's attention at step {step}, "
        told += f"another step's merge is shown: {', '.join(elsewhere)}."
    light = frame[frame["own"] + frame["sources"] < LEAST_MASS]
    if len(light):
        told += f" Negligible attention, ignore the change: {', '.join(light['label'])}."
    return told


def change_by_rule(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Share of attention lost in merges (left of 0: gained): 5 % to 95 % of each run's merges, from `sag_of_runs`."""
    figure = go.Figure()
    for row in frame.itertuples():
        style = method_style(row.method, theme)
        name = f"{row.label}<br>{RULES[row.rule]}"
        figure.add_box(
            y=[name],
            q1=[row.q25],
            median=[row.q50],
            q3=[row.q75],
            lowerfence=[row.q05],
            upperfence=[row.q95],
            orientation="h",
            name=row.label,
            showlegend=False,
            line={"color": style.colour, "width": 1.6},
            fillcolor=mix(style.colour, SURFACES[theme], 0.7),
        )
        figure.add_scatter(
            x=[row.total],
            y=[name],
            mode="markers",
            showlegend=False,
            marker={"symbol": style.marker, "size": 10, "color": pick(HUES["ink"], theme)},
            hovertemplate=f"{row.label}: all merges together lose %{{x:+.1%}}<extra></extra>",
        )
    figure.add_vline(x=0, line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
    finish(
        figure,
        title="Attention of merged slots relative to their parts",
        x="sag: share of the parts' attention lost (right of 0) or gained (left)<br>(box: quartiles, 5 to 95 %; "
        "marker: all)",
        y="",
        theme=theme,
        height=150 + 46 * len(frame),
        legend=False,
    )
    return figure.update_xaxes(tickformat="+.0%").update_yaxes(autorange="reversed")


@with_simple(simple.change_by_rule)
def caption_change_by_rule(frame: pd.DataFrame) -> str:
    """Total change of each run's merges."""
    shown = [
        f"{row.label} {lost_share(row.total)} ({percent(row.sagging)} of {plural(row.merges, 'merge')} sag)"
        for row in frame.itertuples()
    ]
    return "Attention of merged slots against the sum of their parts, all together: " + ", ".join(shown) + "."


def candidate_similarity(
    frame: pd.DataFrame, source: int, texts: list[str], threshold: float | None, theme: Theme = "light"
) -> go.Figure:
    """Cosine of the evicted token's key with every remaining slot, from `merge_effects.candidates`."""
    figure = go.Figure()
    for chosen, name, hue, marker, size in (
        (False, "remaining slots", "blue", "circle", 6),
        (True, "chosen", "red", "star", 15),
    ):
        some = frame[frame["chosen"] == chosen]
        hover = "slot %{x} %{customdata}: cosine %{y:.3f}"
        words = [visible(texts[position]) for position in some["position"]]
        add_points(
            figure,
            some["position"],
            some["similarity"],
            name,
            pick(HUES[hue], theme),
            hover,
            size=size,
            marker_symbol=marker,
            customdata=words,
        )
    if threshold is not None:
        line = {"color": QUIET[theme], "dash": "dash", "width": 1.4}
        figure.add_hline(
            y=threshold, line=line, annotation_text=f"threshold {threshold:g}", annotation_position="bottom left"
        )
    figure.add_vline(x=source, line={"color": pick(HUES["red"], theme), "dash": "dot", "width": 1.2})
    title = f"1. Token {token_label(source, texts[source])} leaves: its most similar slot"
    return finish(
        figure, title=title, x="position of the slot (dotted: the token itself)", y="cosine of keys", theme=theme
    )


@with_simple(simple.candidate_similarity)
def caption_candidate_similarity(frame: pd.DataFrame, source: int, threshold: float | None) -> str:
    """The chosen candidate, and how many reach the threshold."""
    chosen = frame[frame["chosen"]]
    own = f"slot {int(chosen['position'].iloc[0])} at {number(chosen['similarity'].iloc[0])}" if len(chosen) else "none"
    most = number(frame["similarity"].max())
    enough = "" if threshold is None else f"; {int((frame['similarity'] >= threshold).sum())} reach {threshold:g}"
    return f"Of {plural(len(frame), 'slot')} that remain the most similar has cosine {most}{enough}; chosen: {own}."


def parts_of_merge(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Votes, averages and attention of a merge's parts and of the merged slot, from `merge_effects.merge_parts`."""
    names = [
        f"{row.role}<br>{visible(row.text, 10) if row.token < 0 else token_label(row.token, row.text, 10)}<br>"
        f"{number(row.votes)} {'vote' if row.votes == 1 else 'votes'}"
        for row in frame.itertuples()
    ]
    figure = go.Figure()
    for column, name, hue, pattern in (
        ("ema_before", "EMA before this query", "grey", "/"),
        ("ema_after", "EMA with this query", "sky", "."),
        ("mass", "attention of this query", "blue", ""),
    ):
        figure.add_bar(
            x=names,
            y=frame[column],
            name=name,
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern, "size": 5}, "line": {"width": 0}},
            hovertemplate=f"%{{x}}<br>{name}: %{{y:.4g}}<extra></extra>",
        )
    finish(
        figure,
        title="2. Scores are averaged, votes added, and the merged slot replaces its parts",
        x="",
        y="attention",
        theme=theme,
        height=420,
    )
    figure.update_layout(barmode="group", bargap=0.25)
    return figure.update_xaxes(tickfont={"size": 11}).update_yaxes(exponentformat="power")


@with_simple(simple.parts_of_merge)
def caption_parts_of_merge(frame: pd.DataFrame) -> str:
    """Sums before and the slot after."""
    before = frame[frame["role"] != "merged slot"]
    after = frame[frame["role"] == "merged slot"].iloc[0]
    return (
        f"{number(before['votes'].sum())} votes are merged into one slot of {number(after['votes'])}. Its parts had "
        f"{number(before['mass'].sum())} of this query's attention, the slot gets {number(after['mass'])}; the average "
        f"predicts {number(after['ema_after'])}."
    )


def influence_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """The slot's attention at each step, and that of its tokens with nothing dropped."""
    hover = "step %{x}, %{customdata} tokens: %{y:.4f} {name}"
    figure = add_lines(go.Figure(), frame["step"], frame, RECEIVED, theme, hover, customdata=frame["votes"])
    return finish(figure, title="3. Attention of the slot in later steps", x="step", y="attention", theme=theme)


@with_simple(simple.influence_over_steps)
def caption_influence_over_steps(frame: pd.DataFrame) -> str:
    """Means of both."""
    means = frame[["true_mass", "mass"]].mean()
    return (
        f"Over {plural(len(frame), 'step')} the slot gets {number(means['mass'])} of the attention on average, where "
        f"its tokens would have {number(means['true_mass'])} with nothing dropped."
    )
