"""The full cache's answer to the question on the form of New: asked for alone, awaited and judged."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import streamlit as st

from app.base.text import plain
from app.base.widgets import button_unless
from app.navigation.page import CLEAR_REFERENCE
from app.navigation.selection import open_cached, runs_root, session_id
from app.new_run.answer import Question
from app.new_run.model_section import chat_model_button, one_line
from kvlab import jobs
from kvlab.common.lab import acting
from kvlab.core import MethodChoice, UserError
from kvlab.forms import compare_form, plan_preview
from kvlab.jobs.client import busy_words, place_words
from kvlab.jobs.job_reporter import read_live
from kvlab.models.info.mini import taught
from kvlab.models.info.names import EMBEDDED
from kvlab.requests.compare import CompareRequest
from kvlab.views.frames.board import answer_texts, judge_any, phase_texts

OPENED = "full-cache-opened"  # the question with which the form was opened
PENDING = "full-cache-job"  # the id of this session's last job
MAX_TOKENS = 32
POLL_SECONDS = 1.0
DECIDES = (
    "device", "dtype", "placement", "weights", "chat", "system", "thinking", "generation_config", "prefill_chunk",
)  # fmt: skip
"""Options of the form that the text depends on; others are left at their defaults."""


@dataclass(frozen=True)
class FullAnswer:
    """The full cache's answer to the form's question; `options` are those of the run."""

    question: Question
    model: str
    options: dict[str, Any]

    @cached_property
    def request(self) -> CompareRequest | None:
        """The request for its text; None if there is no single prompt, or it cannot be run."""
        if not self.question.prompt.strip() or self.question.error or self.question.several:
            return None
        fields = {name: self.options[name] for name in DECIDES if name in self.options}
        fields |= {"level": "off", "max_new_tokens": MAX_TOKENS, "title": "The full cache's answer"}
        choices = (MethodChoice(method="full", budget=1.0),)
        turns = self.question.turns
        try:
            return compare_form.make_request(
                self.question.prompt, self.model, choices, turns=turns, aside=True, private=True, **fields
            )
        except UserError:
            return None

    @cached_property
    def key(self) -> str:
        """Equal for requests of the same user that give the same text."""
        asked = "" if self.request is None else self.request.model_dump_json()
        return hashlib.sha256(f"{runs_root()}\n{acting().name}\n{asked}".encode()).hexdigest()

    def show(self) -> None:
        """The text, or that it is being generated; asks for it where the question is new and nothing else runs."""
        opened = (self.key, self.question.answer)
        first = st.session_state.setdefault(OPENED, opened)
        if self.request is None:
            return
        if self.key not in _asked() and first != opened and self.question.answer is not None:
            # Ask if the model fits and the queue is idle. A job of this session for an older question ends. An error
            # is left to the button.
            withdraw()
            left = jobs.list_jobs(runs_root(), open_only=True)
            if left and all(job.cancelling for job in left):  # such as the one just withdrawn
                st.fragment(_until_idle, run_every=POLL_SECONDS)()
            elif not left:
                try:
                    plan_preview.check_fits(self.request)
                    self._ask()
                except UserError:
                    _asked()[self.key] = ""
        if not (job_id := _asked().get(self.key)):
            return
        try:
            status = jobs.status(runs_root(), job_id)
        except UserError:  # the queue's file was removed
            del _asked()[self.key]
            return
        if status.ended:
            self._result(status)
        else:
            st.fragment(_wait, run_every=POLL_SECONDS)(job_id)

    def button(self) -> None:
        """The button that asks for the text."""
        if self.request is None:
            return
        why = ""
        with suppress(UserError):
            job_id = _asked().get(self.key)
            if job_id and jobs.status(runs_root(), job_id).state in ("queued", "running", "complete"):
                why = "The answer is shown above."
        if not button_unless("Ask the full cache", why, icon=":material/help:", key="ask-full"):
            return
        try:
            self._ask()
        except UserError as error:
            st.error(plain(str(error)))
            return
        st.rerun()

    def _ask(self) -> None:
        assert self.request is not None
        job_id = jobs.submit(runs_root(), self.request, session_id())
        _asked()[self.key] = st.session_state[PENDING] = job_id
        jobs.ensure_worker(runs_root())

    def _result(self, status: jobs.JobStatus) -> None:
        """The text, and whether it contains the answer."""
        if status.state == "cancelled":
            return
        if status.state != "complete" or not status.run_ids:
            st.warning(plain(f"The full cache did not answer: {status.message or status.state}"))
            return
        try:
            run = open_cached(jobs.aside_root(runs_root()) / status.run_ids[0])
            texts = phase_texts(run, "free")
            answer = answer_texts(run, "free")
        except UserError:  # only the newest of these runs are kept
            _asked().pop(self.key, None)
            return
        most = int(self.options.get("max_new_tokens", MAX_TOKENS))
        texts = texts[:most]
        answer = answer[:most]
        wrote = f"The full cache generates “{plain(''.join(texts).strip()[:300]) or 'only white space'}”"
        if self.question.answer is None:
            st.info(f"{wrote}.")
        elif judge_any(answer, (self.question.answer, *self.question.other_answers)).kind == "right":
            st.success(f"{wrote}, which is right.")
        else:
            st.warning(f"{wrote}. {CLEAR_REFERENCE}", icon=":material/warning:")
            if self.model.strip() != EMBEDDED:
                return
            # What can be done where the small model that ships with kvlab cannot answer a question.
            with st.container(horizontal=True, vertical_alignment="center", gap="small", key="ways-out"):
                chat_model_button()
                with st.popover("A wording that mini knows", icon=":material/edit_note:"):
                    st.caption(
                        "mini was trained on these. State the fact in one of them, and ask in the words beside it."
                    )
                    for one in taught():
                        if one.kind == "a number":
                            st.markdown(plain(f"{one_line(one.statement)}  →  {one_line(one.question)}"))


def withdraw() -> None:
    """Cancel this session's job unless it has ended: it would delay what the user asks for now."""
    if not (job_id := st.session_state.pop(PENDING, "")):
        return
    try:
        if not jobs.status(runs_root(), job_id).ended:
            jobs.cancel(runs_root(), job_id)
            for key in [key for key, other in _asked().items() if other == job_id]:
                del _asked()[key]
    except UserError:
        return  # it is gone


@st.cache_resource(show_spinner=False)
def _asked() -> dict[str, str]:
    """Job ids by `FullAnswer.key`, of all sessions of this server; "" for a request that failed at once."""
    return {}


def _until_idle() -> None:
    """Say that the queue has to become idle; rerun the page once it is."""
    if not jobs.list_jobs(runs_root(), open_only=True):
        st.rerun()
    st.caption("The full cache is asked as soon as the question before this one is withdrawn …")


def _wait(job_id: str) -> None:
    """Say how far the job is; rerun the page once it has ended."""
    status = jobs.status(runs_root(), job_id)
    if status.ended:
        st.rerun()
    words = [place_words(runs_root(), status) or "a few seconds", busy_words()]
    live = read_live(runs_root(), job_id)
    text = live.texts[0].text.strip() if live and live.texts else ""
    so_far = f": “{text} …" if text else " …"
    st.caption(plain(f"Asking the full cache ({'; '.join(filter(None, words))}){so_far}"))
