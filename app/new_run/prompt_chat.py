"""A conversation as the prompt of a new run: turns with roles, which can be added, removed and moved."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from app.base.text import unseen
from app.new_run.draft import keep_draft, opened_draft, show_draft_note
from app.session.url_state import get_param, set_param
from kvlab.core.errors import UserError
from kvlab.requests.compare import OnePrompt
from kvlab.requests.conversation import MOST_TURNS, ROLES, Role, Turn, as_text, check_turns

TURNS = "chat-turns"  # the ids of the turns, in their order
PARAM = "turns"
DRAFT = "turns_draft"
KEPT = "chat-turns-kept"  # the turns of the last draft
FIRST: tuple[tuple[Role, str], ...] = (("system", "You answer briefly."), ("user", ""))


def role_key(number: int) -> str:
    """The session key of a turn's role."""
    return f"turn-role-{number}"


def text_key(number: int) -> str:
    """The session key of a turn's text."""
    return f"turn-text-{number}"


def chat_prompt() -> OnePrompt:
    """The conversation as typed.

    Raises:
        UserError: a turn is empty, or the order of roles is invalid.
    """
    if TURNS not in st.session_state:
        set_turns(_linked_turns() or FIRST)
    numbers = st.session_state[TURNS]
    for place, number in enumerate(numbers):
        _turn(place, number, len(numbers))
    room = len(numbers) < MOST_TURNS
    st.button("Add a turn", icon=":material/add:", key="turn-add", on_click=_add, disabled=not room)
    typed = [(st.session_state[role_key(number)], st.session_state[text_key(number)]) for number in numbers]
    _remember(typed)
    if not any(text.strip() for role, text in typed if role != "system"):
        return OnePrompt(prompt="")
    turns = [Turn(role=role, content=text) for role, text in typed if text]
    if len(turns) < len(typed):
        empty = next(place for place, (_, text) in enumerate(typed, 1) if not text)
        raise UserError(f"Turn {empty} is empty: enter its text, or remove it.")
    return OnePrompt(prompt=as_text(turns), turns=check_turns(turns))


def set_turns(turns: Sequence[tuple[Role, str]]) -> None:
    """Fill in the form; call before it is drawn."""
    numbers = list(range(len(turns)))
    for number, (role, text) in zip(numbers, turns, strict=True):
        st.session_state[role_key(number)] = role
        st.session_state[text_key(number)] = text
    st.session_state[TURNS] = numbers


def _turn(place: int, number: int, count: int) -> None:
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.selectbox(
                f"Role of turn {place + 1}", ROLES, key=role_key(number), label_visibility="collapsed", width=150
            )
            st.space("stretch")
            for name, icon, to, off in (
                ("up", "arrow_upward", place - 1, place == 0),
                ("down", "arrow_downward", place + 1, place == count - 1),
            ):
                st.button(
                    unseen(f"Move turn {place + 1} {name}"),
                    icon=f":material/{icon}:",
                    key=f"turn-{name}-{number}",
                    help=f"Move {name}",
                    type="tertiary",
                    disabled=off,
                    on_click=_move,
                    args=(place, to),
                )
            st.button(
                unseen(f"Remove turn {place + 1}"),
                icon=":material/delete:",
                key=f"turn-remove-{number}",
                help="Remove this turn",
                type="tertiary",
                disabled=count == 1,
                on_click=_remove,
                args=(place,),
            )
        st.text_area(
            f"Turn {place + 1}",
            key=text_key(number),
            height=100,
            label_visibility="collapsed",
            placeholder="Text of the turn",
        )


def _add() -> None:
    numbers = st.session_state[TURNS]
    after = st.session_state[role_key(numbers[-1])]
    number = max(numbers) + 1
    st.session_state[role_key(number)] = "assistant" if after == "user" else "user"
    st.session_state[text_key(number)] = ""
    st.session_state[TURNS] = [*numbers, number]


def _move(place: int, to: int) -> None:
    numbers = list(st.session_state[TURNS])
    numbers.insert(to, numbers.pop(place))
    st.session_state[TURNS] = numbers


def _remove(place: int) -> None:
    numbers = list(st.session_state[TURNS])
    del numbers[place]
    st.session_state[TURNS] = numbers


def _remember(typed: list[tuple[Role, str]]) -> None:
    """Keep the turns as a draft, whose id is in the URL."""
    turns: list[JsonValue] = [[role, text] for role, text in typed]
    if turns != st.session_state.get(KEPT):
        keep_draft(DRAFT, None if typed == [*FIRST] else turns)
        st.session_state[KEPT] = turns
    show_draft_note()


def _linked_turns() -> list[tuple[Role, str]]:
    """The turns that the link stands for; empty if there are none. Links of before have the turns themselves."""
    turns = TypeAdapter(list[tuple[Role, str]])
    try:
        found = turns.validate_json(old) if (old := get_param(PARAM)) else turns.validate_python(opened_draft(DRAFT))
    except ValidationError:
        found = []
    set_param(PARAM, None)
    return found[:MOST_TURNS]
