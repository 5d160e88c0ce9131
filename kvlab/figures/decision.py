"""The prompt's compression decision: every token's score, the cutoff, and the tokens just below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.analysis.lineage.decision import FATES, budget_for, cutoff, nearly_kept
from kvlab.figures.simple import merging as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import add_points
from kvlab.views.base.palette import HUES, LOSS, STATE_COLOURS, SURFACES, Theme, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import number, plural, visible

LOOK = {"kept": ("kept", "circle"), "merged": ("pivot", "x-thin-open"), "dropped": ("evicted", "line-ns-open")}
# Tokens near the cutoff, chosen ones, and an even sample of the rest. SVG draws this many faster than a WebGL context
# is created (.4 to .6 s without a GPU).
MOST_POINTS = 2000


def scores_at_decision(frame: pd.DataFrame, chosen: Sequence[int] = (), theme: Theme = "light") -> go.Figure:
    """Tokens of a prompt by position and rank of their score, from `analysis.lineage.decision.decision`.

    `chosen` tokens are outlined and labelled.
    """
    line = cutoff(frame)
    shown = thin_rows(frame, chosen)
    figure = go.Figure()
    for fate in (fate for fate in FATES if (frame["fate"] == fate).any()):
        part = shown[shown["fate"] == fate]
        state, symbol = LOOK[fate]
        colour = pick(STATE_COLOURS[state] if fate != "dropped" else HUES["grey"], theme)
        name = f"{fate} ({int((frame['fate'] == fate).sum()):,})"
        hover = f"“%{{customdata[0]}}”, token %{{x}}<br>score %{{customdata[1]}}, rank %{{y:,}}<br>{fate}"
        texts = np.stack([part["text"].map(visible), [number(score, 4) for score in part["score"]]], 1)
        edge = {"color": colour, "width": 1.2}
        add_points(
            figure,
            part["token"],
            part["rank"],
            name,
            colour,
            hover,
            customdata=texts,
            marker_symbol=symbol,
            marker_line=edge,
        )
    if line.by_score and np.isfinite(line.line):
        last = frame.loc[~frame["kept"], "rank"].min() - 0.5
        ink = pick(HUES["ink"], theme)
        words = f"cutoff: {line.budget:,} slots, {line.placed:,} of them by position"
        label = {"text": words, "bgcolor": SURFACES[theme]}
        figure.add_hline(y=float(last), line={"width": 1.5, "dash": "dash", "color": ink}, annotation=label)
    named = frame[frame["token"].isin(chosen)]
    if len(named):
        figure.add_scatter(
            x=named["token"],
            y=named["rank"],
            name="chosen",
            mode="markers+text" if len(named) <= 8 else "markers",
            text=[f"“{visible(text, 10)}”" for text in named["text"]],
            textposition="top center",
            hoverinfo="skip",
            marker={"symbol": "circle-open", "size": 13, "line": {"width": 2, "color": pick(HUES["red"], theme)}},
        )
    title = "The prompt's decision: which tokens stay"
    y = "rank of the score (1 is the highest)"
    finish(figure, title=title, x="token of the prompt", y=y, theme=theme, height=480)
    return figure.update_yaxes(autorange="reversed")


def thin_rows(frame: pd.DataFrame, chosen: Sequence[int], most: int = MOST_POINTS) -> pd.DataFrame:
    """The rows that are drawn."""
    if len(frame) <= most:
        return frame
    best_lost = frame.loc[~frame["kept"], "rank"].min()
    away = (frame["rank"] - best_lost).abs()
    near = away <= np.partition(away, most // 2 - 1)[most // 2 - 1]
    even = np.arange(len(frame)) % -(-2 * len(frame) // most) == 0
    return frame[near | even | frame["token"].isin(chosen)]


@with_simple(simple.scores_at_decision)
def caption_scores_at_decision(frame: pd.DataFrame, chosen: Sequence[int] = ()) -> str:
    """The tokens just below the cutoff, and the slots the chosen tokens would have needed."""
    line = cutoff(frame)
    told = f"{plural(line.budget, 'token')} of {len(frame):,} kept a slot."
    if not line.by_score:
        odd = plural(line.odd, "token")
        return f"{told} The score alone does not explain it: {odd} stayed with lower scores than one that left."
    near = ", ".join(f"“{row.text.strip()}” (token {row.token})" for row in nearly_kept(frame, 3).itertuples())
    told += f" Nearly kept: {near}." if near else ""
    wanted = budget_for(frame, chosen) if len(chosen) else None
    if wanted is not None:
        more = wanted - line.budget
        need = f"would have needed {wanted:,} slots here, {more:,} more, with as many kept by position"
        need = "stayed within this budget" if more == 0 else need
        told += f" {'The chosen token' if len(set(chosen)) == 1 else 'All chosen tokens'} {need}."
    if len(frame) > MOST_POINTS:
        told += f" Showing {len(thin_rows(frame, chosen)):,} tokens, including all near the cutoff."
    return told


def budgets_for(frame: pd.DataFrame, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """Missing slots per head to keep all chosen tokens, from `decision.budgets_by_head`."""
    table = frame.assign(lacked=(frame["needed"] - frame["slots"]).astype(float))
    lacked = table.pivot(index="layer", columns="head", values="lacked")
    had = table.pivot(index="layer", columns="head", values="slots")
    hover = ": %{z:,} slots missing<br>it had %{customdata:,}"
    return head_map(
        lacked,
        "Slots needed for the chosen tokens",
        theme,
        bar="missing slots",
        hover=hover,
        high=float(np.nanmax(lacked.to_numpy(np.float64), initial=1.0)),
        colours=LOSS[theme],
        customdata=had.to_numpy(),
        focus=focus,
    )


@with_simple(simple.budgets_for)
def caption_budgets_for(frame: pd.DataFrame) -> str:
    """The heads that kept all tokens, and the one with the most missing slots, where the score alone explains it."""
    known = frame[frame["needed"].notna()]
    if known.empty:
        return f"In none of {plural(len(frame), 'head')} does the score alone explain the decision."
    more = (known["needed"] - known["slots"]).astype(float)
    dearest = known.loc[more.idxmax()]
    held = int((more == 0).sum())
    rest = f" Layer {dearest['layer']} head {dearest['head']} missed most: it had {int(dearest['slots']):,} slots and "
    rest = f"{rest}would have needed {int(dearest['needed']):,}." if more.max() else ""
    told = f"{held} of {plural(len(known), 'head')} kept all of them."
    if len(known) < len(frame):
        told = f"The score alone explains the decision in {len(known)} of {plural(len(frame), 'head')}: {told}"
    return f"{told}{rest}"
