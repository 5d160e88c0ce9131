"""Fates of chosen tokens: by head, over steps, and the attention that they get.

The tokens are a `span`, their first and last position.
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import join_words
from kvlab.trace.reader import Run
from kvlab.views.base.head_map import Place, head_map
from kvlab.views.base.lines import Line, add_area, add_lines
from kvlab.views.base.palette import FATES_OF_READING, STATE_COLOURS, Theme, fate_scale, pick
from kvlab.views.base.template import finish
from kvlab.views.base.view import view
from kvlab.views.base.words import EXACT, are_known, comparison_words, near, part, percent, sentence
from kvlab.views.frames import autopsy as frames
from kvlab.views.frames.autopsy import TIED
from kvlab.views.frames.lineage import keep_by_run
from kvlab.views.unread import Unread, unread_tokens, with_unread

MASSES = (
    Line("full", "full cache: on these tokens", "ink", "solid", "circle"),
    Line("true", "this run with nothing dropped: on these tokens", "grey", "dot", "square"),
    Line("received", "this run: on slots that hold them", "purple", "dash", "diamond"),
)
HARDLY = 1e-4  # a share of attention that is told as hardly any


fates_of_span = keep_by_run(8)(frames.autopsy)


@keep_by_run(4)
def unread_of_span(run: Run, span: tuple[int, int]) -> Unread | None:
    """`unread_tokens` of every head; None for a run without a sparse reading."""
    return unread_tokens(run, fates_of_span(run, span)) if run.reading_layers else None


def fates_at(run: Run, span: tuple[int, int], step: int | None = None, reads: bool = True) -> pd.DataFrame:
    """The fates after `step` (default: the last); with `reads`, what a sparse reading left out is one too."""
    table = fates_of_span(run, span, step)
    left_out = unread_of_span(run, span) if reads else None
    if left_out is None:
        return table
    return with_unread(table, left_out[-1 if step is None else min(step, len(left_out) - 1)])


@view("fate_by_head", title="Fate of the chosen tokens by head", needs="full", page="why_wrong")
def survival_of_span(run: Run, span: tuple[int, int], step: int | None = None, reads: bool = True) -> pd.DataFrame:
    reads = reads and unread_of_span(run, span) is not None
    return frames.survival(fates_at(run, span, step, reads), reads)


@survival_of_span.figure
def survival_by_head(
    frame: pd.DataFrame, theme: Theme = "light", fate: str = "dropped", focus: Place | None = None
) -> go.Figure:
    """Share of the chosen tokens with this fate by layer and KV head, from `autopsy.survival`."""
    table = frame.pivot(index="layer", columns="head", values=fate)
    steps = frame["first_lost"]
    words = ["none dropped" if pd.isna(step) else f"first dropped at step {step}" for step in steps]
    lost = frame.assign(text=words).pivot(index="layer", columns="head", values="text")
    return head_map(
        table,
        "Fate of the chosen tokens by head",
        theme,
        bar=f"share {FATES_OF_READING[fate][0]}",
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
    left_out = unread_of_span(run, span) if reads else None
    return frames.fates_over_steps(fates_of_span(run, span), int(run.steps["step"].max()), left_out)


@fates_of_span_over_steps.figure
def fates_over_steps(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Shares of all (layer, head, token) in each fate over the steps, stacked."""
    figure = go.Figure()
    for fate, (words, state, pattern) in FATES_OF_READING.items():
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
    """`frames.autopsy.needle_mass`; `full` is the full cache's run of the same comparison."""
    return frames.needle_mass(run, fates_of_span(run, span), layer, head, full)


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
    """What is left of the chosen text over all heads at a moment, from `frames.autopsy.survival`."""
    fates = {fate: words for fate, (words, *_) in FATES_OF_READING.items() if fate in frame}
    shares = join_words([f"{percent(frame[fate].mean())} {words}" for fate, words in fates.items()])
    return f"With {label}, of the chosen text over all heads, {moment}: {shares}."
