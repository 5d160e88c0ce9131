"""Edits of the chosen words in one lane: keep or drop them; the lane is compressed again and answers again."""

from __future__ import annotations

import streamlit as st

from app.base import permission
from app.base.text import plain
from app.base.widgets import one_of
from app.live.changes import sampling
from app.live.sessions import act
from kvlab.analysis.attention.token_heads import TokenHeads
from kvlab.common.errors import UserError
from kvlab.requests.compare import MethodChoice
from kvlab.requests.live_session import LiveRequest
from kvlab.requests.token_edits import Edit, edit_tokens, edit_words, without_edits

ALL, ONE = "all", "one"


def word_edits(
    session: str,
    request: LiveRequest,
    lane: int,
    words: tuple[int, int],
    label: str,
    heads: TokenHeads | None,
    is_busy: bool,
) -> None:
    """Buttons that keep or drop the tokens `words` (first and last), named `label`, in one lane.

    `heads` are the lane's heads, if they were read.
    """
    choice, changed = request.lanes[lane], None
    why = permission.why_not() or request.why_fixed or ("An answer is being written." if is_busy else "")
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="live-word-edits"):
        st.markdown(plain(label), width="content")
        head = _where(heads, words[1])
        if permission.button("Keep", why, icon=":material/keep:", key="live-keep"):
            changed = _edited(choice, "keep", words, head)
        if permission.button("Drop", why, icon=":material/delete:", key="live-drop"):
            changed = _edited(choice, "drop", words, head)
        nothing = "" if edit_words(choice) else "Nothing was edited in this lane."
        if permission.button("Undo edits", why or nothing, icon=":material/undo:", key="live-undo"):
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
    table = heads.of_token(token)
    most = table.loc[table["attention"].idxmax()]
    head = int(most["layer"]), int(most["head"])
    where = one_of(
        "Where",
        {ALL: "in all heads", ONE: f"in layer {head[0]}, head {head[1]}, which reads it most"},
        key="edit_in",
        label_visibility="collapsed",
    )
    return head if where == ONE else None


def _edited(
    choice: MethodChoice, edit: Edit, words: tuple[int, int], head: tuple[int, int] | None
) -> MethodChoice | None:
    try:
        return edit_tokens(choice, edit, range(words[0], words[1] + 1), head)
    except UserError as error:
        st.error(plain(str(error)))
        return None
