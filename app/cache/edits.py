"""Change a decision of the run in view, in one head or in all, and run it again beside the run as it was."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.base.widgets import button_unless, one_of
from app.queue.submit import queue_and_open
from kvlab.core.restore import OF_TOKENS, Restore
from kvlab.jobs.reruns import rerun_with_restored
from kvlab.trace.reader import Run

CHANGES = {
    "tokens": "keep the chosen token",
    "drop": "drop the chosen token",
    "merge": "merge the chosen token",
    "heads": "evict nothing",
    "apart": "do not merge",
    "evict": "evict instead of merging",
}


def edit_section(run: Run, layer: int, head: int, token: int | None, text: str) -> None:
    """What to change and where; the button queues both runs and opens the page on which their texts are written.

    `text` is that of the chosen token.
    """
    left, right, act = st.columns([3, 3, 2], vertical_alignment="bottom")
    with left:
        kind = one_of("Change", CHANGES, key="change")
    with right:
        where = one_of("Where", {"head": f"layer {layer}, head {head}", "all": "all layers and heads"}, key="where")
    why = why_not_token(run, token) if kind in OF_TOKENS else ""
    with act:
        if button_unless("Run it again so", why, icon=":material/replay:", key="wall-rerun"):
            change = change_of(kind, layer, head, token, everywhere=where == "all")
            queue_and_open("new_run", lambda: rerun_with_restored(run.record, change))
    chosen = f" The chosen token is {token} “{text}”." if token is not None else ""
    words = f"{run.record.label} runs twice: as it was, and with this change. Slots kept come on top of its budget."
    st.caption(plain(words + chosen))


def why_not_token(run: Run, token: int | None) -> str:
    """Why a token cannot be kept, dropped or merged; empty if it can."""
    if token is None:
        return "Click a token on the wall or in a text first."
    if token >= run.record.prompt_tokens:
        return "Only tokens of the prompt can be kept, dropped or merged: choose an earlier one."
    return ""


def change_of(kind: str, layer: int, head: int, token: int | None, everywhere: bool) -> Restore:
    """The change as a request."""
    heads = None if everywhere else ((layer, head),)
    tokens = (token,) if kind in OF_TOKENS and token is not None else ()
    return Restore.model_validate({"kind": kind, "tokens": tokens, "heads": heads})
