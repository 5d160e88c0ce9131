"""A conversation as the prompt of a new run: turns with roles that are added, removed and ordered."""

from __future__ import annotations

import json

import streamlit as st
from pydantic import TypeAdapter, ValidationError

from kvlab.common.errors import UserError
from kvlab.requests.compare import OnePrompt
from kvlab.requests.conversation import MOST_TURNS, ROLES, Role, Turn, as_text, check_turns

KEPT = "chat-turns"  # the ids of the turns, in their order
ADDRESS = "turns"
LINKED_CHARACTERS = 2_000  # of a conversation, in the address
FIRST: tuple[tuple[Role, str], ...] = (("system", "You answer briefly."), ("user", ""))


def role_key(number: int) -> str:
    """Where the role of a turn lies in the session."""
    return f"turn-role-{number}"


def text_key(number: int) -> str:
    """Where what a turn says lies in the session."""
    return f"turn-text-{number}"


def chat_prompt() -> OnePrompt:
    """The conversation as it is typed.

    Raises:
        UserError: no model could answer it.
    """
    if KEPT not in st.session_state:
        keep_turns(_linked() or FIRST)
    numbers = st.session_state[KEPT]
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
        raise UserError(f"Turn {empty} is empty: write what it says, or remove it.")
    return OnePrompt(prompt=as_text(turns), turns=check_turns(turns))


def keep_turns(turns: list[tuple[Role, str]] | tuple[tuple[Role, str], ...]) -> None:
    """Put these turns into the form, before it is drawn."""
    numbers = list(range(len(turns)))
    for number, (role, text) in zip(numbers, turns, strict=True):
        st.session_state[role_key(number)], st.session_state[text_key(number)] = role, text
    st.session_state[KEPT] = numbers


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
                    "", icon=f":material/{icon}:", key=f"turn-{name}-{number}", help=f"Move {name}", type="tertiary",
                    disabled=off, on_click=_move, args=(place, to),
                )  # fmt: skip
            st.button(
                "", icon=":material/delete:", key=f"turn-remove-{number}", help="Remove this turn", type="tertiary",
                disabled=count == 1, on_click=_remove, args=(place,),
            )  # fmt: skip
        st.text_area(
            f"Turn {place + 1}", key=text_key(number), height=100, label_visibility="collapsed", placeholder="Says …"
        )


def _add() -> None:
    numbers = st.session_state[KEPT]
    after = st.session_state[role_key(numbers[-1])]
    number = max(numbers) + 1
    st.session_state[role_key(number)] = "assistant" if after == "user" else "user"
    st.session_state[text_key(number)] = ""
    st.session_state[KEPT] = [*numbers, number]


def _move(place: int, to: int) -> None:
    numbers = list(st.session_state[KEPT])
    numbers.insert(to, numbers.pop(place))
    st.session_state[KEPT] = numbers


def _remove(place: int) -> None:
    numbers = list(st.session_state[KEPT])
    del numbers[place]
    st.session_state[KEPT] = numbers


def _remember(typed: list[tuple[Role, str]]) -> None:
    words = json.dumps(typed, ensure_ascii=False)
    if len(words) <= LINKED_CHARACTERS:
        st.query_params[ADDRESS] = words
    else:
        st.query_params.pop(ADDRESS, None)
        st.caption(f"A link to this page leaves the turns out: it carries at most {LINKED_CHARACTERS:,} characters.")


def _linked() -> list[tuple[Role, str]]:
    """The turns of the address; none where it has none that can be used."""
    try:
        found = TypeAdapter(list[tuple[Role, str]]).validate_json(st.query_params.get(ADDRESS, ""))
    except ValidationError:
        return []
    return found[:MOST_TURNS]
