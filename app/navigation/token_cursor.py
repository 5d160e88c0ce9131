"""The token in view, which pages share as long as they show one text.

Positions of another text mean nothing, so the session remembers of which comparison the token was chosen.
"""

from __future__ import annotations

from collections.abc import Collection

import streamlit as st

from app.session.url_state import chosen_value, params, parse_number, remember, set_param, url_number

TOKEN = "token"
TEXT_OF_TOKEN = "comparison_of_chosen_token"


def chosen_token(comparison: str, tokens: int) -> int | None:
    """The token in the URL, else the one chosen on another page in this text; None if the text has no such token."""
    token = url_number(TOKEN)
    token = shared_token([comparison]) if token is None else token
    if token is None or token >= tokens:
        return None
    set_param(TOKEN, str(token))
    share_token(comparison, token)
    return token


def shared_token(comparisons: Collection[str]) -> int | None:
    """The token chosen on another page in the text of one of these comparisons."""
    if st.session_state.get(TEXT_OF_TOKEN) not in comparisons:
        return None
    return parse_number(chosen_value(TOKEN))


def share_token(comparison: str, token: int) -> None:
    """Let the other pages of a comparison show this token."""
    remember(TOKEN, str(token), url=False)
    st.session_state[TEXT_OF_TOKEN] = comparison


def offer_token(comparison: str, last: int) -> None:
    """Let the field `token` of a page, up to `last`, begin with the token chosen on another page in this text."""
    if TOKEN not in params() and TOKEN not in st.session_state:
        shared = shared_token([comparison])
        if shared is not None and shared <= last:
            st.session_state[TOKEN] = shared
