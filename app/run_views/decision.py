"""The prompt's decision of one head on a page: the scores, the budget a token would have taken, and the player."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.tokenstrip import tokenstrip
from app.figures.figure import show
from app.run_views import page
from app.session.url_numbers import asked_number
from app.session.url_state import keep
from kvlab.analysis.comparison.facts import fact_positions
from kvlab.analysis.lineage import decision as analysis
from kvlab.common.errors import UserError
from kvlab.figures import decision as figures
from kvlab.trace.reader import Run

STRIP = "decision-strip"


def decision_section(run: Run, layer: int, head: int, token: int | None) -> None:
    """Who stayed and who nearly did; of the chosen `token`, or else of the marked fact, what it would have taken."""
    st.subheader("The prompt's decision")
    try:
        table = _decision(run, *page.stamp(run), layer, head)
    except UserError as error:
        st.caption(plain(str(error)))
        return
    chosen = chosen_tokens(run, token, table)
    figure = figures.scores_at_decision(table, chosen, page_theme())
    reading = figures.read_scores_at_decision(table, chosen)
    name = page.file_name(run, f"decision-layer-{layer}-head-{head}")
    show(figure, table, reading, "decision", name, page.source(run))
    if not chosen:
        st.caption("Click a word above, or mark a fact, to see what keeping it would have taken in every head.")
        return
    heads = _by_head(run, *page.stamp(run), tuple(chosen))
    if heads["needed"].notna().any():
        figure, reading = figures.budgets_for(heads, page_theme()), figures.read_budgets_for(heads)
        show(figure, heads, reading, "decision-heads", page.file_name(run, "decision-budgets"), page.source(run))


def chosen_tokens(run: Run, token: int | None, table: pd.DataFrame) -> list[int]:
    """The token, or without one those of the fact that the run knows of."""
    if token is not None:
        return [token] if (table["token"] == token).any() else []
    try:
        return fact_positions(run.tokens, run.record.prompt, run.record.facts).tolist()
    except UserError:
        return []


def played_decision(run: Run, layer: int, head: int) -> None:
    """The player over the decision itself: what leaves, the lowest score first."""
    lineage, _, texts = page.head_history(run, layer, head)
    try:
        table = _decision(run, *page.stamp(run), layer, head)
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    history = analysis.replay(lineage, table)
    gone = [int((history.leave <= step).sum()) for step in history.steps]
    words = [f"{count:,} of {gone[-1]:,} have left, the lowest scores first" for count in gone]
    words[0] = "the prompt was read, and nothing has left" if gone[-1] else "this head keeps the whole prompt"
    tokenstrip(
        history,
        texts[: history.tokens],
        identity=f"{run.path}/{layer}/{head}/decision",
        step=chosen_frame(len(history.steps)),
        selected=None,
        masses=None,
        theme=page_theme(),
        key=STRIP,
        on_step=remember_frame,
        on_token=remember_token,
        phases=words,
        title=f"{run.record.label}: the prompt's decision",
        source=page.source(run),
    )


def chosen_frame(count: int) -> int:
    """The frame the address names, else the first."""
    asked = asked_number("frame")
    return asked if asked is not None and asked < count else 0


def remember_frame() -> None:
    if (step := st.session_state[STRIP].get("step")) is not None:
        keep("frame", int(step))


def remember_token() -> None:
    if (token := st.session_state[STRIP].get("token")) is not None:
        keep("token", int(token))


@st.cache_resource(max_entries=page.OPEN_HEADS, show_spinner=False)
def _decision(_run: Run, path: str, written: int, layer: int, head: int) -> pd.DataFrame:
    return analysis.decision(_run, layer, head, page.head_history(_run, layer, head)[0])


@st.cache_data(max_entries=16, show_spinner="Reading every head's decision")
def _by_head(_run: Run, path: str, written: int, tokens: tuple[int, ...]) -> pd.DataFrame:
    return analysis.budgets_by_head(analysis.decisions(_run), tokens)
