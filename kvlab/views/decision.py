"""The prompt's compression decision in one head: every token's score, which stayed, and the budget a token needed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import add_points
from kvlab.views.base.palette import HUES, LOSS, STATE_COLOURS, SURFACES, Theme, pick
from kvlab.views.base.template import finish
from kvlab.views.base.view import view
from kvlab.views.base.words import number, sentence, some_of, visible
from kvlab.views.frames.autopsy import FATES
from kvlab.views.frames.facts import fact_positions
from kvlab.views.frames.lineage import NEVER, Lineage, head_history, resolve_roots

FRAMES = 24


@dataclass(frozen=True)
class Cutoff:
    """The cutoff of the decision. `line` is the highest score among evicted tokens, NaN if none left.

    `placed`: tokens kept with a lower score because they are sinks or recent; `odd`: tokens elsewhere on the wrong side
    of the cutoff, for which the score alone does not explain the decision.
    """

    budget: int
    line: float
    placed: int
    odd: int

    @property
    def by_score(self) -> bool:
        """Whether score and position together explain which tokens stayed."""
        return self.odd == 0


@view("decision", title="The prompt's decision: which tokens stay", needs="full", page="cache")
def decision(run: Run, layer: int, head: int) -> pd.DataFrame:
    """One row per token considered: token, text, score, kept, fate (one of `FATES`), rank, placed.

    `rank` is 1 for the highest score, if tied of the later token. `placed`: kept with a lower score than one that left.

    Raises:
        UserError: the decision was not recorded.
    """
    lineage, _, read = head_history(run, layer, head)
    table = by_rank(run, layer, head)
    owner = lineage.owners(decision_step(lineage))[table["token"]]
    table["fate"] = np.where(table["kept"], FATES[0], np.where(owner >= 0, FATES[1], FATES[2]))
    return table.assign(text=[read[token] for token in table["token"]])


def chosen_tokens(run: Run, token: int | None) -> list[int]:
    """The token, else those of the run's facts; none if its tokens do not spell them."""
    if token is not None:
        return [token]
    try:
        return fact_positions(run.tokens, run.record.prompt, run.record.facts).tolist()
    except UserError:
        return []


def by_rank(run: Run, layer: int, head: int) -> pd.DataFrame:
    """As `decision`, without texts and fates; raises the same errors."""
    score, kept = run.decision(layer, head)
    tokens = np.flatnonzero(~np.isnan(score))
    score = score[tokens]
    kept = kept[tokens] > 0
    order = np.lexsort((-tokens, -score))
    rank = np.empty(len(tokens), np.int64)
    rank[order] = np.arange(1, len(tokens) + 1)
    best_lost = rank[~kept].min(initial=len(tokens) + 1)
    placed = kept & (rank > best_lost)
    return pd.DataFrame({"token": tokens, "score": score, "kept": kept, "rank": rank, "placed": placed})


def decision_step(lineage: Lineage) -> int:
    """Step of the prompt's decision: 0, or 1 for a method that waits and first evicts there.

    A head that keeps the whole prompt decided right after the prompt.
    """
    return 0 if (lineage.leave == 0).any() or not (lineage.leave == 1).any() else 1


def cutoff(table: pd.DataFrame) -> Cutoff:
    """The cutoff in `decision`'s table.

    Sinks and recent tokens, i.e. the contiguous kept tokens at both ends of the prompt, stay because of their position.
    """
    kept = table["kept"].to_numpy()
    lost = table.loc[~table["kept"], "score"]
    placed = table["placed"].to_numpy()
    gaps = np.flatnonzero(~kept)
    edge = kept.copy()
    if len(gaps):
        edge[gaps[0] : gaps[-1] + 1] = False
    odd = int((placed & ~edge).sum())
    return Cutoff(int(kept.sum()), float(lost.max()) if len(lost) else np.nan, int(placed.sum()), odd)


def budget_for(table: pd.DataFrame, tokens: Sequence[int]) -> int | None:
    """Slots this head would need to keep all of `tokens`, given the same tokens kept by position.

    That is its current slots plus one per evicted token ranked at or above the lowest of `tokens`. None if the score
    alone does not explain the decision, or it did not cover one of them.
    """
    chosen = table[table["token"].isin(tokens)]
    if len(chosen) < len(set(tokens)) or not cutoff(table).by_score:
        return None
    lost = table[~table["kept"]]
    lowest = chosen.loc[~chosen["kept"], "rank"].max()
    return int(table["kept"].sum()) + (0 if np.isnan(lowest) else int((lost["rank"] <= lowest).sum()))


def replay(lineage: Lineage, table: pd.DataFrame, frames: int = FRAMES) -> Lineage:
    """Animate the decision as a lineage of `frames` steps: tokens leave in equal portions, the lowest score first.

    Step 0 is the full prompt. Tokens that left after the decision are still present.
    """
    step = decision_step(lineage)
    tokens = int(lineage.tokens_seen[lineage.steps == step][0])
    left = table.loc[~table["kept"]].sort_values("rank", ascending=False)["token"].to_numpy()
    portion = 1 + np.arange(len(left)) * frames // max(len(left), 1)
    leave = np.full(tokens, NEVER)
    parent = np.full(tokens, -1)
    kind = np.zeros(tokens, np.uint8)
    leave[left] = portion
    parent[left] = lineage.parent[left]
    kind[left] = lineage.kind[left]
    absorb = np.full(tokens, NEVER)
    merged = left[parent[left] >= 0]
    np.minimum.at(absorb, parent[merged], leave[merged])
    roots = resolve_roots(np.where(parent >= 0, parent, np.arange(tokens)))
    steps = np.arange(frames + 1 if len(left) else 1)
    death = np.where((parent[roots] < 0) & (leave[roots] != NEVER), leave[roots], NEVER)
    birth = np.zeros(tokens, np.int64)
    return Lineage(steps, np.full(len(steps), tokens), birth, leave, kind, parent, absorb, death)


LOOK = {"kept": ("kept", "circle"), "merged": ("pivot", "x-thin-open"), "dropped": ("evicted", "line-ns-open")}
# Tokens near the cutoff, chosen ones, and an even sample of the rest. SVG draws this many faster than a WebGL context
# is created (.4 to .6 s without a GPU).
MOST_POINTS = 2000


@decision.figure
def draw_decision(frame: pd.DataFrame, theme: Theme, run: Run, token: int | None = None) -> go.Figure:
    """Tokens by position and rank of their score; the chosen ones are outlined and labelled."""
    chosen = chosen_tokens(run, token)
    line = cutoff(frame)
    shown = frame
    if len(frame) > MOST_POINTS:
        away = (frame["rank"] - frame.loc[~frame["kept"], "rank"].min()).abs()
        near = away <= np.partition(away, MOST_POINTS // 2 - 1)[MOST_POINTS // 2 - 1]
        even = np.arange(len(frame)) % -(-2 * len(frame) // MOST_POINTS) == 0
        shown = frame[near | even | frame["token"].isin(chosen)]
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


@decision.caption
def describe_decision(frame: pd.DataFrame) -> str:
    line = cutoff(frame)
    if line.budget >= len(frame):
        return "Every token kept its slot."
    if not line.budget:
        return "No token kept its slot."
    if not line.by_score:
        return "The score alone does not explain who stayed: some tokens with lower scores did."
    if line.placed:
        return "The first and last tokens stayed because of their place, the others because of their scores."
    return "The tokens with the highest scores stayed."


@view("decision_budgets", title="Slots needed for the chosen tokens", needs="full", page="cache")
def decision_budgets(run: Run, token: int | None = None) -> pd.DataFrame:
    """One row per recorded layer and head: its `slots`, and those `needed` to keep the token, else the facts.

    Raises:
        UserError: there is neither, or the scores alone explain no head's decision.
    """
    chosen = chosen_tokens(run, token)
    if not chosen:
        raise UserError("Choose a word of the text, or mark a fact, to see the slots that keeping it would have taken.")
    model = run.record.model
    rows = []
    for layer in run.record.recording.of_layers(range(model.num_hidden_layers)):
        for head in run.record.recording.of_heads(model.num_key_value_heads):
            try:
                table = by_rank(run, layer, head)
            except UserError:  # the decision was not recorded
                break
            slots = int(table["kept"].sum())
            rows.append({"layer": layer, "head": head, "slots": slots, "needed": budget_for(table, chosen)})
    frame = pd.DataFrame(rows, columns=["layer", "head", "slots", "needed"]).astype({"needed": "Int64"})
    if not frame["needed"].notna().any():
        raise UserError("In no head do the scores alone explain which tokens stayed, so no budget can be named.")
    return frame


@decision_budgets.figure
def draw_budgets(frame: pd.DataFrame, theme: Theme = "light", focus: Place | None = None) -> go.Figure:
    """Missing slots per head to keep all chosen tokens."""
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


@decision_budgets.caption
def describe_budgets(frame: pd.DataFrame) -> str:
    known = frame[frame["needed"].notna()]
    if known.empty:
        return "The score alone explains the decision of no head."
    kept = int((known["needed"] <= known["slots"]).sum())
    text = f"the chosen text was kept whole by {some_of(kept, len(known), 'head')}"
    return sentence(text if len(known) == len(frame) else f"where the score alone decides, {text}")
