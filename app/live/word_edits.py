"""Edits of the chosen words in one lane: keep, drop or merge them; the lane is compressed again and answers again."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.base.widgets import button_unless, one_of
from app.live.changes import sampling
from app.live.cursor import head_in_focus
from app.live.sessions import act
from app.session.url_state import drop_stale_option
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.requests.live_session import LiveRequest
from kvlab.requests.token_edits import Edit, edit_tokens, edit_words, without_edits
from kvlab.views.frames.token_heads import TokenHeads

ALL = "all"
ONE = "one"
FOCUS = "focus"
# Button, icon, what it does.
BUTTONS: dict[Edit, tuple[str, str, str]] = {
    "keep": ("Keep", "keep", "The words keep slots of their own."),
    "drop": ("Drop", "delete", "The words are evicted; others take their slots."),
    "merge": (
        "Merge",
        "merge",
        "The words are evicted by the method's own merging rule, which may find no slot alike enough. A method that "
        "evicts tokens merges them into the slot with the most similar key, by the mean of keys and values. Others "
        "take their slots.",
    ),
}


def word_edits(
    session: str,
    request: LiveRequest,
    lane: int,
    words: tuple[int, int],
    label: str,
    heads: TokenHeads | None,
    is_busy: bool,
) -> None:
    """Buttons that keep, drop or merge the tokens `words` (first and last), named `label`, in one lane.

    `heads` are the lane's heads, if they were read.
    """
    choice = request.lanes[lane]
    changed = None
    why = request.why_fixed or ("An answer is being written." if is_busy else "")
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="live-word-edits"):
        st.markdown(plain(label), width="content")
        head = _where(heads, words[1])
        for edit, (name, icon, told) in BUTTONS.items():
            if button_unless(name, why, icon=f":material/{icon}:", help=told, key=f"live-{edit}"):
                changed = _edited(choice, edit, words, head)
        nothing = "" if edit_words(choice) else "Nothing was edited in this lane."
        if button_unless("Undo edits", why or nothing, icon=":material/undo:", key="live-undo"):
            changed = without_edits(choice)
    note = (
        request.why_fixed or "Only this lane is compressed again, within its budget, and answers the questions again."
    )
    st.caption(plain(f"Edits of this lane: {edit_words(choice)}.") if edit_words(choice) else note)
    if changed is not None and act(session, request, "lane", lane=lane, choice=changed, **sampling()):
        st.rerun()


def _where(heads: TokenHeads | None, token: int) -> tuple[int, int] | None:
    """The head (layer, head) in which an edit is made; None for all."""
    if heads is None or token >= heads.attention.shape[2]:
        return None
    most = heads.most_attentive(token)
    focus = head_in_focus(heads, token)
    options = {ALL: "in all heads", ONE: f"in layer {most[0]}, head {most[1]}, which reads it most"}
    if focus is not None and focus != most:
        options[FOCUS] = f"in layer {focus[0]}, head {focus[1]}, in view"
    drop_stale_option("edit_in", list(options))
    where = one_of("Where", options, key="edit_in", label_visibility="collapsed")
    return {ONE: most, FOCUS: focus}.get(where)


def _edited(
    choice: MethodChoice, edit: Edit, words: tuple[int, int], head: tuple[int, int] | None
) -> MethodChoice | None:
    try:
        return edit_tokens(choice, edit, range(words[0], words[1] + 1), head)
    except UserError as error:
        st.error(plain(str(error)))
        return None
