"""Fates of chosen tokens: by head, over steps, and the attention that they get.

The tokens are a `span`, their first and last position.
"""

from contextlib import suppress

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import join_words
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_lines
from kvlab.views.base.palette import FATES_WITH_UNREAD, STATE_COLOURS, Theme, fate_scale, pick
from kvlab.views.base.template import finish
from kvlab.views.base.view import view
from kvlab.views.base.words import EXACT, are_known, comparison_words, near, part, percent, sentence
from kvlab.views.frames.autopsy import FATES, TIED, UNREAD, autopsy
from kvlab.views.frames.lineage import keep_by_run
from kvlab.views.unread import Unread, unread_tokens

MASSES = (
    Line("full", "full cache: on these tokens", "ink", "solid", "circle"),
    Line("true", "this run with nothing dropped: on these tokens", "grey", "dot", "square"),
    Line("received", "this run: on slots that hold them", "purple", "dash", "diamond"),
)
HARDLY = 1e-4  # a share of attention that is told as hardly any


fates_of_span = keep_by_run(8)(autopsy)


@keep_by_run(4)
def unread_of_span(run: Run, span: tuple[int, int]) -> Unread | None:
    """`unread_tokens` of every head; None for a run without sparse attention."""
    return unread_tokens(run, fates_of_span(run, span)) if run.sparse_layers else None


def fates_at(run: Run, span: tuple[int, int], step: int | None = None, reads: bool = True) -> pd.DataFrame:
    """The fates after `step` (default: the last); with `reads`, what sparse attention left out is one too."""
    table = fates_of_span(run, span, step)
    left_out = unread_of_span(run, span) if reads else None
    if left_out is None:
        return table
    unread = left_out[-1 if step is None else min(step, len(left_out) - 1)]
    return table.assign(fate=np.where((table["fate"] != FATES[2]) & unread, UNREAD, table["fate"]))


@view("fate_by_head", title="Fate of the chosen tokens by head", needs="full", page="why_wrong")
def survival_of_span(run: Run, span: tuple[int, int], step: int | None = None, reads: bool = True) -> pd.DataFrame:
    """One row per layer and head: share of the chosen tokens in each of `FATES`, and the step of the first drop.

    With `reads`, of a run with sparse attention also in `UNREAD`.
    """
    reads = reads and unread_of_span(run, span) is not None
    table = fates_at(run, span, step, reads)
    shares = table.groupby(["layer", "head"])["fate"].value_counts(normalize=True).unstack(fill_value=0.0)
    shares = shares.reindex(columns=[*FATES, UNREAD] if reads else list(FATES), fill_value=0.0)
    return shares.assign(first_lost=table.groupby(["layer", "head"])["lost"].min()).reset_index()


@survival_of_span.figure
def survival_by_head(
    frame: pd.DataFrame, theme: Theme = "light", fate: str = "dropped", focus: Place | None = None
) -> go.Figure:
    """Share of the chosen tokens with this fate by layer and KV head, from `survival_of_span`."""
    table = frame.pivot(index="layer", columns="head", values=fate)
    steps = frame["first_lost"]
    words = ["none dropped" if pd.isna(step) else f"first dropped at step {step}" for step in steps]
    lost = frame.assign(text=words).pivot(index="layer", columns="head", values="text")
    return head_map(
        table,
        "Fate of the chosen tokens by head",
        theme,
        bar=f"share {FATES_WITH_UNREAD[fate][0]}",
        hover=": %{z:.0%}<br>%{text}",
        bar_options={"tickformat": ".0%"},
        text=lost.to_numpy(),
        colours=fate_scale(fate, theme),
        focus=focus,
    )


@survival_of_span.caption
def caption_survival_by_head(frame: pd.DataFrame, moment: str = "") -> str:
    """What is left of the chosen tokens over all heads; `moment` names the step."""
    when = f", {moment}" if moment else ""
    return sentence(f"over all heads, {part(1 - frame['dropped'].mean())} of the chosen text is still held{when}")


@view("fate_over_steps", title="Fate over the steps, all heads", needs="full", page="why_wrong", by_step=True)
def fates_of_span_over_steps(run: Run, span: tuple[int, int], reads: bool = True) -> pd.DataFrame:
    """Share of all (layer, head, token) in each of `FATES` after every step: columns step, then `FATES`.

    With `reads`, of a run with sparse attention those held and not read are in a column `UNREAD` instead.
    """
    table = fates_of_span(run, span)
    last_step = int(run.steps["step"].max())
    steps = np.arange(last_step + 1)
    lost = table["lost"].fillna(last_step + 1).to_numpy(np.int64)
    changed = np.minimum(table["shared"].fillna(last_step + 1).to_numpy(np.int64), lost)
    gone, dropped = (np.searchsorted(np.sort(values), steps, side="right") / len(table) for values in (changed, lost))
    shares = pd.DataFrame({"step": steps, FATES[0]: 1 - gone, FATES[1]: gone - dropped, FATES[2]: dropped})
    unread = unread_of_span(run, span) if reads else None
    if unread is None:
        return shares
    at = np.arange(len(unread))[:, None]
    out = unread & (lost > at)
    whole = changed > at
    left = {FATES[0]: (out & whole).mean(1), FATES[1]: (out & ~whole).mean(1), UNREAD: -out.mean(1)}
    left = {name: np.pad(share, (0, last_step + 1 - len(share))) for name, share in left.items()}
    return shares.assign(**{name: shares.get(name, 0.0) - share for name, share in left.items()})


@fates_of_span_over_steps.figure
def fates_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Shares of all (layer, head, token) in each fate over the steps, stacked."""
    figure = go.Figure()
    for fate, (words, state, pattern) in FATES_WITH_UNREAD.items():
        if fate not in frame:
            continue
        look = {"shape": pattern, "size": 6, "solidity": 0.25}
        hover = f"step %{{x}}: %{{y:.1%}} {words}"
        add_area(figure, frame["step"], frame[fate], words, pick(STATE_COLOURS[state], theme), hover, look)
    finish(figure, title="Fate over the steps, all heads", x="step", y="share of heads and tokens", theme=theme)
    return figure.update_yaxes(range=[0, 1.02], tickformat=".0%")


@fates_of_span_over_steps.caption
def caption_fates_over_steps(frame: pd.DataFrame) -> str:
    """What is left after the prompt and at the end."""
    first, last = (1 - float(frame["dropped"].iloc[place]) for place in (0, -1))
    if not are_known(first, last):
        return "What became of the chosen text was not recorded."
    if max(first, last) <= EXACT:
        return "Nothing of the chosen text is held after the prompt, or later."
    if near(first, last):
        return sentence(f"{part(first)} of the chosen text is held after the prompt, and as much at the end")
    text = f"{part(first)} of the chosen text is held after the prompt"
    end = part(last)
    if end == part(first):
        end = f"slightly {'less' if last < first else 'more'}"
    return sentence(f"{text}, and {end} at the end")


@view(
    "attention_to_span",
    title="Attention on the chosen tokens, this head",
    needs="full",
    page="why_wrong",
    by_step=True,
)
def attention_to_span(run: Run, layer: int, head: int, span: tuple[int, int], full: Run | None = None) -> pd.DataFrame:
    """Attention on the chosen tokens of one head per step: columns step, full, true, received.

    `full` is that of the full cache's run of the same comparison, NaN where it was not recorded; `true` what this run's
    query would give them with nothing dropped. `received` sums the attention of all slots that hold a chosen token,
    including the whole attention of merged slots. A slot that was itself merged away no longer counts.

    Raises:
        UserError: the run recorded no attention rows.
    """
    true_mass, slot_mass = run.attention(layer, head, thinned=True)
    steps = run.select("steps", layer, head, ["step"])["step"].to_numpy()[:: run.attention_every]
    table = fates_of_span(run, span)
    head_rows = table[(table["layer"] == layer) & (table["head"] == head)]
    positions = head_rows["token"].to_numpy(np.int64)
    rows = min(len(steps), len(true_mass))
    received = []
    for step, mass in zip(steps[:rows].tolist(), slot_mass, strict=False):
        left = (head_rows["left"] <= step).fillna(False)
        held = head_rows["lost"].isna() | (head_rows["lost"] > step).fillna(False)
        inside = head_rows[left & held]
        alone = head_rows.loc[~left, "token"]
        slots = np.concatenate([alone, inside["into"], inside.loc[inside["slot"] >= 0, "slot"]]).astype(np.int64)
        received.append(float(mass[np.unique(slots)].astype(np.float32).sum()))
    true = true_mass[:rows, positions].astype(np.float32).sum(1)
    table = pd.DataFrame({"step": steps[:rows], "true": true, "received": received})
    # Of the full cache's run by step, if it read the same text and recorded its attention.
    whole = pd.Series(dtype=float)
    texts = [one.tokens.loc[one.tokens["phase"] != "free", "id"].tolist() for one in (run, full or run)]
    if full is not None and texts[0] == texts[1]:
        with suppress(UserError):
            mass = full.attention(layer, head, thinned=True)[0][:, positions].astype(np.float32).sum(1)
            whole = pd.Series(mass, np.arange(len(mass)) * full.attention_every)
    return table.assign(full=table["step"].map(whole))


@attention_to_span.figure
def needle_mass(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Attention on the chosen tokens over the steps: of the full cache's run, if recorded, of this run with nothing
    dropped, and on the slots that hold them."""
    lines = [line for line in MASSES if line.column != "full" or frame["full"].notna().any()]
    figure = add_lines(go.Figure(), frame["step"], frame, lines, theme, "step %{x}: {name} %{y:.4f}", size=5)
    finish(figure, title="Attention on the chosen tokens, this head", x="step", y="share of attention", theme=theme)
    return figure.update_yaxes(rangemode="tozero", tickformat=".3~p")


@attention_to_span.caption
def caption_needle_mass(frame: pd.DataFrame) -> str:
    """Whether the chosen tokens get the attention they would get."""
    column = "full" if frame["full"].notna().any() else "true"
    whose = "the full cache looks" if column == "full" else "this run, with nothing dropped, would look"
    most = frame[column].max()
    if not most >= HARDLY:
        return "This head hardly looks at the chosen text."
    # Of steps with about as much attention, that where the run gives least.
    top = frame[frame[column] >= (1 - TIED) * most].sort_values("received", kind="stable").iloc[0]
    received = float(top["received"])
    if not np.isfinite(received):
        return f"When {whose} at the chosen text most, this run's attention was not recorded."
    if received < HARDLY:
        return f"When {whose} at the chosen text most, this run does not look at it."
    less = "less than half as much" if received < top[column] / 2 else "less"
    how = comparison_words(received, float(top[column]), "more", less, "about as much", 0.1)
    return f"When {whose} at the chosen text most, this run gives it {how} attention."


def verdict(frame: pd.DataFrame, label: str, moment: str) -> str:
    """What is left of the chosen text over all heads at a moment, from `survival_of_span`."""
    fates = {fate: words for fate, (words, *_) in FATES_WITH_UNREAD.items() if fate in frame}
    shares = join_words([f"{percent(frame[fate].mean())} {words}" for fate, words in fates.items()])
    return f"With {label}, of the chosen text over all heads, {moment}: {shares}."
