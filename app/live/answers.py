"""An answer as HTML: each word shaded by the KL of the branch's prediction from the full cache's."""

from collections.abc import Mapping
from html import escape

import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import attempt, button_unless
from app.live.sessions import BRANCH, running_job, transcript_of, waiting
from app.navigation.place import page_keys
from app.navigation.selection import runs_root
from app.session.url_state import set_page_param, set_param, url_number
from kvlab import jobs
from kvlab.browser import read_static
from kvlab.common.formatting import format_bytes
from kvlab.live.transcript import Answer, BranchState, Transcript, Turn
from kvlab.views.base import HUES, Theme, pick, plural

# URL parameter
PRESENT = "present"
YES = "yes"
BUTTON = ".st-key-{} button"
KEYS = (("n", "next branch"), ("a", "ask a question; Enter sends it"), ("s", "stop the answers"), ("Esc", "leave"))
TARGETS = {
    "n": BUTTON.format("live-next-branch"),
    "a": '[data-testid="stChatInput"] textarea',
    "s": BUTTON.format("live-present-stop"),
    "Escape": BUTTON.format("live-present-leave"),
}


def present(session: str, poll_seconds: float) -> None:
    """The last question with all answers, followed while a job of the session waits or runs."""
    st.html(f"<style>{read_static('live-present.css')}</style>")
    page_keys(steps=False, more=KEYS, targets=TARGETS)
    job = running_job(session)
    transcript = transcript_of(session)
    if job is None:
        last_answers(transcript, is_written=False)
    else:
        st.fragment(_follow, run_every=poll_seconds)(session)
    with st.container(horizontal=True, gap="small", key="live-present-controls"):
        branches = sorted(transcript.branches)
        st.button(
            "Next branch (n)",
            key="live-next-branch",
            on_click=lambda: set_page_param(
                BRANCH, branches[(branches.index(branch_in_focus(branches)) + 1) % len(branches)]
            ),
            disabled=len(branches) < 2,
        )
        if button_unless("Stop (s)", "" if job is not None else "Nothing is running.", key="live-present-stop"):
            assert job is not None
            attempt(lambda: jobs.cancel(runs_root(), job.job_id))
        if st.button("Leave (Esc)", key="live-present-leave"):
            set_param(PRESENT, None)
            st.rerun()


def _follow(session: str) -> None:
    """Draw what the job has written so far."""
    job = running_job(session)
    if job is None:
        st.rerun()
    last_answers(transcript_of(session), is_written=True)
    if job.position is not None:
        waiting(job, "")


def last_answers(transcript: Transcript, is_written: bool) -> None:
    """The last question and the answers of all branches to it, with the bytes of the branch in focus."""
    if not transcript.is_read:
        st.caption("The context is read and compressed in every branch …")
        return
    branch = branch_in_focus(sorted(transcript.branches))
    state = transcript.branches[branch]
    if not transcript.turns:
        st.html('<div class="kv-present-question">Ask the first question: press a.</div>')
        return
    turn = transcript.turns[-1]
    st.html(f'<div class="kv-present-question">{escape(turn.question)}</div>')
    st.html(answers_html(turn, transcript.branches, page_theme(), is_written, focus=branch))
    share = 100 * state.live_bytes / max(transcript.full_bytes, 1)
    st.markdown(
        f"**{plain(state.label)}**: {plain(format_bytes(state.live_bytes))}, {share:.0f} % of the full cache, after "
        f"{transcript.tokens_seen:,} tokens"
    )


def branch_in_focus(branches: list[int]) -> int:
    """The branch in the URL, else the first beside the reference."""
    branch = url_number(BRANCH)
    return branch if branch in branches else branches[min(1, len(branches) - 1)]


LEVELS = ((1.0, 0.55), (0.1, 0.32), (0.01, 0.14))  # least KL in nats, and the opacity of its shade
THE_FULL = "the full cache"
REASONS = {"end": "", "length": "cut at the most tokens", "stopped": "stopped", "": "writing"}

HEIGHT = 260  # pixels of an answer
GRID = "display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: 1rem;"
CELL = (
    f"height: {HEIGHT}px; display: flex; flex-direction: column; border: 1px solid #8886; border-radius: 0.5rem; "
    "padding: 0.7rem 1rem;"
)
SCROLLED = "flex: 1; min-height: 0; overflow-y: auto;"
AT_THE_END = "display: flex; flex-direction: column-reverse;"  # so that the end of a text that grows is in view
TEXT = "margin-bottom: auto; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.55;"
NOTE = "font-size: 0.875rem; opacity: 0.75; margin-top: 0.6rem;"


def answers_html(
    turn: Turn, branches: Mapping[int, BranchState], theme: Theme, is_written: bool, focus: int | None = None
) -> str:
    """The answers of all branches to a question, side by side; `is_written` while a job writes them.

    With `focus`, a branch, they are presented: in large type, and that branch outlined and wider.
    """
    cells = []
    reference = THE_FULL if 0 not in branches or branches[0].label.startswith("full ") else branches[0].label
    for branch, state in sorted(branches.items()):
        answer = turn.answers.get(branch, Answer())
        note = escape(answer_note(answer, is_written, reference)) if answer.words else ""
        if branch and note and all(word.kl is None for word in answer.words):
            note += " · not shaded: an earlier answer differs, so predictions cannot be compared"
        style = SCROLLED + AT_THE_END * is_written
        label = f'tabindex="0" role="group" aria-label="Answer of {escape(state.label)}"'  # scrolled by keys too
        words = answer_html(answer, theme, is_written, reference)
        text = f'<div style="{style}" {label}><div style="{TEXT}">{words}</div></div>'
        head = f'<div class="{"label" if focus is None else "kv-present-label"}">{escape(state.label)}</div>'
        note_box = f'<div class="note" style="{NOTE}" title="{note}">{note}</div>'
        kind = "answer in-focus" if branch == focus else "answer"
        cells.append(f'<div class="{kind}" style="{CELL}">{head}{text}{note_box}</div>')
    if focus is None:
        return f'<div style="{GRID}">{"".join(cells)}</div>'
    widths = " ".join("minmax(0, 1.5fr)" if branch == focus else "minmax(0, 1fr)" for branch in sorted(branches))
    return f'<div class="kv-present" style="{GRID} grid-template-columns: {widths};">{"".join(cells)}</div>'


def answer_html(answer: Answer, theme: Theme, is_written: bool, reference: str = THE_FULL) -> str:
    """The words, escaped, with their KL as tooltip; the first that leaves the reference's text is underlined.

    `is_written`: a job is writing the answer, or others of its question.
    """
    colour = pick(HUES["red"], theme)
    spans = []
    for word in answer.words:
        shade = next((opacity for least, opacity in LEVELS if word.kl is not None and word.kl >= least), 0.0)
        style = f"background: {colour}{round(255 * shade):02x};" if shade else ""
        title = "" if word.kl is None else f"KL {word.kl:.3g} nats"
        if word.leaves:
            style += f"border-bottom: 3px solid {colour}; font-weight: 700;"
            title = f"Here the text leaves {reference}'s. {title}".strip()
        spans.append(f'<span style="{style}" title="{escape(title)}">{escape(word.text)}</span>')
    caret = "" if answer.reason or not is_written else "▍"
    return f"{''.join(spans)}{caret}"


def answer_note(answer: Answer, is_written: bool, reference: str = THE_FULL) -> str:
    """How many tokens, how long, and why it ended."""
    leaves = next((place for place, word in enumerate(answer.words, 1) if word.leaves), None)
    left = "" if leaves is None else f"leaves {reference}'s text at token {leaves}, where shading ends"
    count = plural(len(answer.words), "token")
    speed = f"{answer.seconds:.1f} s for all branches together" if answer.reason else ""
    reason = REASONS.get(answer.reason, answer.reason) if answer.reason or is_written else "interrupted"
    empty = "only white space" if answer.words and not answer.text.strip() else ""
    return " · ".join(part for part in (count, empty, speed, reason, left) if part)
