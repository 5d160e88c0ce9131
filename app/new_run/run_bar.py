"""The bar at the bottom of New run, always in view: what would run, what is wrong with it, and the two buttons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.base.widgets import button_unless
from app.navigation.selection import runs_root, session_id
from app.new_run.answer import Question
from app.new_run.full_answer import withdraw
from app.new_run.plan_panel import show_plan
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.forms import compare_form, plan_preview
from kvlab.forms.run_summary import run_summary
from kvlab.planning.plan import Plan
from kvlab.requests.compare import CompareRequest
from kvlab.views.base.words import plural


def run_bar(
    build: Callable[[], CompareRequest],
    question: Question,
    plan: Plan | None,
    notes: Sequence[str],
    ask: Callable[[], None],
) -> None:
    """Draw the bar. `build` makes the request, and raises UserError where the form cannot be sent.

    `ask` draws the button for the full cache; `notes` are warnings about the methods.
    """
    waiting = 0
    try:
        request = build()
        problem = question.error
        plan_preview.check_fits(request)
        waiting = len(jobs.list_jobs(runs_root(), open_only=True))
    except UserError as error:
        request = None
        problem = str(error)
    with st.bottom, st.container(key="run-bar", horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(key="run-sentence"):
            _sentence(request, problem, plan, notes, waiting, is_empty=not question.prompt.strip())
        if plan is not None:
            with st.popover("Plan", icon=":material/memory:", type="tertiary"):
                show_plan(plan)
        ask()
        start: dict[str, Any] = {"type": "primary", "icon": ":material/play_arrow:", "key": "run"}
        if button_unless("Run", plain(problem), **start) and request is not None:
            _submit(request)


def _sentence(
    request: CompareRequest | None,
    problem: str,
    plan: Plan | None,
    notes: Sequence[str],
    waiting: int,
    is_empty: bool,
) -> None:
    """What would run, or why nothing can."""
    if request is None or problem:
        (st.caption if is_empty else st.error)(plain(problem))
        return
    queue = f", after {plural(waiting, 'job')} in the queue" if waiting else ""
    st.markdown(f"**{plain(run_summary(request, plan) + queue)}**")
    for note in notes:
        st.caption(f":material/warning: {plain(note)}")


def _submit(request: CompareRequest) -> None:
    """Queue the comparison and show its progress, or an error."""
    try:
        withdraw()
        job_id = jobs.submit(runs_root(), request, session_id())
        compare_form.store_last_form(runs_root(), request.model, _placement(request))
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    go("new_run", job=job_id)


def _placement(request: CompareRequest) -> dict[str, object]:
    """Device and weights in the form's words."""
    return {name: getattr(request, name) or "none" for name in compare_form.PLACEMENTS}
