"""An answer as HTML: each word shaded by the KL of the lane's prediction from the full cache's."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from kvlab.live.transcript import Answer, LaneState, Turn
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.words import plural

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
    turn: Turn, lanes: Mapping[int, LaneState], theme: Theme, is_written: bool, focus: int | None = None
) -> str:
    """The answers of all lanes to a question, side by side; `is_written` while a job writes them.

    With `focus`, a lane, they are presented: in large type, and that lane outlined and wider.
    """
    cells = []
    reference = reference_name(lanes)
    for lane, state in sorted(lanes.items()):
        answer = turn.answers.get(lane, Answer())
        note = escape(answer_note(answer, is_written, reference)) if answer.words else ""
        style = SCROLLED + AT_THE_END * is_written
        label = f'tabindex="0" role="group" aria-label="Answer of {escape(state.label)}"'  # scrolled by keys too
        words = answer_html(answer, theme, is_written, reference)
        text = f'<div style="{style}" {label}><div style="{TEXT}">{words}</div></div>'
        head = f'<div class="{"label" if focus is None else "kv-present-label"}">{escape(state.label)}</div>'
        told = f'<div class="note" style="{NOTE}" title="{note}">{note}</div>'
        kind = "answer in-focus" if lane == focus else "answer"
        cells.append(f'<div class="{kind}" style="{CELL}">{head}{text}{told}</div>')
    if focus is None:
        return f'<div style="{GRID}">{"".join(cells)}</div>'
    widths = " ".join("minmax(0, 1.5fr)" if lane == focus else "minmax(0, 1fr)" for lane in sorted(lanes))
    return f'<div class="kv-present" style="{GRID} grid-template-columns: {widths};">{"".join(cells)}</div>'


def reference_name(lanes: Mapping[int, LaneState]) -> str:
    """Name of the reference of all answers: the full cache, or the first lane by its label."""
    return THE_FULL if 0 not in lanes or lanes[0].label.startswith("full ") else lanes[0].label


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
    left = "" if leaves is None else f"leaves {reference}'s text at token {leaves}"
    count = plural(len(answer.words), "token")
    speed = f"{answer.seconds:.1f} s" if answer.reason else ""
    reason = REASONS.get(answer.reason, answer.reason) if answer.reason or is_written else "interrupted"
    empty = "only white space" if answer.words and not answer.text.strip() else ""
    return " · ".join(part for part in (count, empty, speed, reason, left) if part)
