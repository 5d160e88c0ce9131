"""A head's eviction decision after the prompt: scores, the budget a token would have needed, and the player."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.tokenstrip import tokenstrip
from app.run_views import page
from app.session.open_runs import BY_STAMP
from app.session.url_state import set_page_param, url_number
from kvlab.analysis.lineage import decision as analysis
from kvlab.core.errors import UserError
from kvlab.figures import decision as figures
from kvlab.trace.reader import Run
from kvlab.views.frames.facts import fact_positions

STRIP = "decision-strip"


def decision_section(run: Run, layer: int, head: int, token: int | None) -> None:
    """Scores of kept and evicted tokens, and the budget that keeping `token`, or else the fact, would have needed."""
    st.header("The prompt's decision")
    try:
        table = decision(run, layer, head)
    except UserError as error:
        st.caption(plain(str(error)))
        return
    chosen = chosen_tokens(run, token, table)
    figure = figures.scores_at_decision(table, chosen, page_theme())
    caption = figures.caption_scores_at_decision(table, chosen)
    page.show_figure(run, figure, table, caption, "decision", f"decision-layer-{layer}-head-{head}")
    if not chosen:
        st.caption(
            "Click a word above, or mark a fact, to see the budget that keeping it would have needed in every head."
        )
        return
    heads = budgets_by_head(run, tuple(chosen))
    if heads["needed"].notna().any():
        figure = figures.budgets_for(heads, page_theme(), (layer, head))
        caption = figures.caption_budgets_for(heads)
        page.show_figure(run, figure, heads, caption, "decision-heads", "decision-budgets", (layer, head))


def chosen_tokens(run: Run, token: int | None, table: pd.DataFrame) -> list[int]:
    """The token, else the tokens of the run's fact."""
    if token is not None:
        return [token] if (table["token"] == token).any() else []
    try:
        return fact_positions(run.tokens, run.record.prompt, run.record.facts).tolist()
    except UserError:
        return []


def played_decision(run: Run, layer: int, head: int) -> None:
    """The player of the decision: evictions by ascending score."""
    lineage, _, texts = page.head_history(run, layer, head)
    try:
        table = decision(run, layer, head)
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    history = analysis.replay(lineage, table)
    evicted = [int((history.leave <= step).sum()) for step in history.steps]
    phases = [f"{count:,} of {evicted[-1]:,} evicted, lowest scores first" for count in evicted]
    phases[0] = "the prompt was read, and nothing is evicted" if evicted[-1] else "this head keeps the whole prompt"
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
        phases=phases,
        title=f"{run.record.label}: the prompt's decision",
        source=page.source(run),
    )


def chosen_frame(count: int) -> int:
    """The frame in the URL, else the first."""
    frame = url_number("frame")
    return frame if frame is not None and frame < count else 0


def remember_frame() -> None:
    """Put the step of the decision view into the URL."""
    if (step := st.session_state[STRIP].get("step")) is not None:
        set_page_param("frame", int(step))


def remember_token() -> None:
    """Put the chosen token of the decision view into the URL."""
    if (token := st.session_state[STRIP].get("token")) is not None:
        set_page_param("token", int(token))


@st.cache_resource(max_entries=page.OPEN_HEADS, show_spinner=False, hash_funcs=BY_STAMP)
def decision(run: Run, layer: int, head: int) -> pd.DataFrame:
    """The scores at the decision of one head."""
    return analysis.decision(run, layer, head, page.head_history(run, layer, head)[0])


@st.cache_data(max_entries=16, show_spinner="Reading every head's decision", hash_funcs=BY_STAMP)
def budgets_by_head(run: Run, tokens: tuple[int, ...]) -> pd.DataFrame:
    """The budget that keeping these tokens would have needed in every head."""
    return analysis.budgets_by_head(analysis.decisions(run), tokens)
