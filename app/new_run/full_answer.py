"""The full cache's answer to the prompt before a comparison, generated through the queue."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.base import permission
from app.base.text import plain
from app.navigation.selection import open_cached, runs_root, session_id
from app.new_run.answer import Question
from app.run_views.require_level import CLEAR_REFERENCE
from kvlab import jobs
from kvlab.analysis.comparison.board import judge_any, phase_texts
from kvlab.common.errors import UserError
from kvlab.forms import compare_form
from kvlab.requests.compare import MethodChoice

REQUESTED = "full-cache-request"
MAX_TOKENS = 32
POLL_SECONDS = 1.0


def full_answer(question: Question, model: str, options: dict[str, Any]) -> None:
    """A button that generates the answer, and the answer to this prompt; `options` are those of the run."""
    request = (question.prompt, question.answer, model)
    why, label = permission.why_not(), "Test the full cache first"
    if permission.button(label, why, icon=":material/help:", key="ask-full", width="stretch"):
        try:
            job_id = _submit(question, model, options)
        except UserError as error:
            st.error(plain(str(error)))
            return
        st.session_state[REQUESTED] = (request, job_id)
    requested, job_id = st.session_state.get(REQUESTED, (None, ""))
    if requested != request:
        return
    try:
        ended = jobs.status(runs_root(), job_id).ended
    except UserError as error:
        st.error(plain(str(error)))
        return
    if ended:
        _show(question, job_id)
    else:
        st.fragment(_wait, run_every=POLL_SECONDS)(job_id)


def _submit(question: Question, model: str, options: dict[str, Any]) -> str:
    changed = {
        "level": "off",
        "max_new_tokens": min(MAX_TOKENS, int(options["max_new_tokens"])),
        "title": "The full cache's answer",
        "aside": True,
        "private": True,
    }
    choice = MethodChoice(method="full", budget=1.0)
    request = compare_form.make_request(question.prompt, model, (choice,), turns=question.turns, **(options | changed))
    job_id = jobs.submit(runs_root(), request, session_id())
    jobs.ensure_worker(runs_root())
    return job_id


def _wait(job_id: str) -> None:
    status = jobs.status(runs_root(), job_id)
    if status.ended:
        st.rerun()
    waiting = f"{(status.position or 1) - 1} jobs ahead" if (status.position or 1) > 1 else "a few seconds"
    st.caption(f"Running the full cache ({waiting}) …")


def _show(question: Question, job_id: str) -> None:
    """The text, and whether it contains the answer."""
    status = jobs.status(runs_root(), job_id)
    if status.state != "complete" or not status.run_ids:
        st.warning(plain(f"The full cache did not answer: {status.message or status.state}"))
        return
    try:
        texts = phase_texts(open_cached(jobs.aside_root(runs_root()) / status.run_ids[0]), "free")
    except UserError as error:
        st.error(plain(str(error)))
        return
    wrote = f"The full cache generates “{plain(''.join(texts).strip()[:300]) or 'only white space'}”"
    if question.answer is None:
        st.info(f"{wrote}.")
    elif judge_any(texts, (question.answer, *question.other_answers)).kind == "right":
        st.success(f"{wrote}, which is right.")
    else:
        st.warning(f"{wrote}. {CLEAR_REFERENCE}", icon=":material/warning:")
