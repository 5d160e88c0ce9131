"""The user's saved prompts on the form of New: search, choose, rename, remove with undo, and save."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import streamlit as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from app.base.text import plain, unseen
from app.base.widgets import button_unless, why_not_change, widget_options
from app.navigation.selection import runs_root
from app.session.url_state import get_param, in_url, set_param
from kvlab.core.errors import UserError
from kvlab.library import prompts
from kvlab.library.prompts import read_draft, store_draft
from kvlab.requests.compare import OnePrompt
from kvlab.requests.conversation import MOST_TURNS, ROLES, Role, Turn, as_text, check_turns

NOT_KEPT = "draft-not-kept"  # why the last draft is not in the link


def keep_draft(name: str, content: JsonValue) -> None:
    """Store what was typed and put its id into the parameter `name`; without content the parameter is removed."""
    st.session_state.pop(NOT_KEPT, None)
    draft = None
    if content:
        try:
            draft = store_draft(runs_root(), content)
        except UserError as error:
            st.session_state[NOT_KEPT] = str(error)
    set_param(name, draft, force=True)


def opened_draft(name: str) -> JsonValue:
    """What the link's parameter `name` stands for; None without one, and with a sentence if it is not there."""
    if not (draft := get_param(name)):
        return None
    try:
        return read_draft(runs_root(), draft)
    except UserError as error:
        st.warning(plain(str(error)))
        return None


def show_draft_note() -> None:
    """Say that a link to this page lacks what was typed, if it could not be stored."""
    if why := st.session_state.get(NOT_KEPT):
        st.caption(plain(f"A link to this page does not contain the text: {why}"))


TURNS = "chat-turns"  # the ids of the turns, in their order
PARAM = "turns"
DRAFT = "turns_draft"
KEPT = "chat-turns-kept"  # the turns of the last draft
FIRST: tuple[tuple[Role, str], ...] = (("system", "You answer briefly."), ("user", ""))


def turn_key(part: Literal["role", "text"], number: int) -> str:
    """The session key of a turn's role or text."""
    return f"turn-{part}-{number}"


def chat_prompt() -> OnePrompt:
    """The conversation as typed.

    Raises:
        UserError: a turn is empty, or the order of roles is invalid.
    """
    if TURNS not in st.session_state:
        # The turns that the link stands for. Links of before have the turns themselves.
        turn_list = TypeAdapter(list[tuple[Role, str]])
        linked: list[tuple[Role, str]] = []
        with suppress(ValidationError):
            old = get_param(PARAM)
            linked = turn_list.validate_json(old) if old else turn_list.validate_python(opened_draft(DRAFT))
        set_param(PARAM, None)
        set_turns(linked[:MOST_TURNS] or FIRST)
    numbers = st.session_state[TURNS]
    for place, number in enumerate(numbers):
        _turn(place, number, len(numbers))
    room = len(numbers) < MOST_TURNS
    st.button("Add a turn", icon=":material/add:", key="turn-add", on_click=_add, disabled=not room)
    typed = [
        (st.session_state[turn_key("role", number)], st.session_state[turn_key("text", number)]) for number in numbers
    ]
    # The turns are kept as a draft, whose id is in the URL.
    content: list[JsonValue] = [[role, text] for role, text in typed]
    if content != st.session_state.get(KEPT):
        keep_draft(DRAFT, None if typed == [*FIRST] else content)
        st.session_state[KEPT] = content
    show_draft_note()
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
        st.session_state[turn_key("role", number)] = role
        st.session_state[turn_key("text", number)] = text
    st.session_state[TURNS] = numbers


def _turn(place: int, number: int, count: int) -> None:
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.selectbox(
                f"Role of turn {place + 1}",
                ROLES,
                key=turn_key("role", number),
                label_visibility="collapsed",
                width=150,
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
                on_click=_move,
                args=(place,),
            )
        st.text_area(
            f"Turn {place + 1}",
            key=turn_key("text", number),
            height=100,
            label_visibility="collapsed",
            placeholder="Text of the turn",
        )


def _add() -> None:
    numbers = st.session_state[TURNS]
    after = st.session_state[turn_key("role", numbers[-1])]
    number = max(numbers) + 1
    st.session_state[turn_key("role", number)] = "assistant" if after == "user" else "user"
    st.session_state[turn_key("text", number)] = ""
    st.session_state[TURNS] = [*numbers, number]


def _move(place: int, to: int | None = None) -> None:
    """Callback: move a turn, or remove it with None."""
    numbers = list(st.session_state[TURNS])
    number = numbers.pop(place)
    if to is not None:
        numbers.insert(to, number)
    st.session_state[TURNS] = numbers


NAME = "prompt"  # the URL parameter
REMOVED = "prompt-removed"


def saved_prompt() -> tuple[OnePrompt, str]:
    """The chosen prompt with its answer and facts, and its name; empty if nothing is saved."""
    words = st.text_input("Search", **in_url("prompt_words"), placeholder="words of the name or text")
    saved = {prompt.name: prompt for prompt in prompts.saved_prompts(runs_root(), words)}
    removed, problem = st.session_state.get(REMOVED, ("", ""))
    if problem:
        st.error(plain(problem))
    if removed:
        st.button(
            f"Restore {plain(removed)}",
            icon=":material/undo:",
            key="prompt-undo",
            on_click=lambda: _try(lambda: prompts.restore_prompt(runs_root(), removed).name),
        )
    if not saved:
        note = "No saved prompt contains these words." if words.strip() else "No prompt is saved yet."
        st.info(f"{note} You can save any prompt of this form with the button below its answer.")
        return OnePrompt(prompt=""), ""
    name = st.selectbox("Prompt", list(saved), **in_url(NAME))
    chosen = saved[name]
    why = why_not_change([chosen.owner])
    when = f", saved {chosen.saved[:10]}" if chosen.saved else ""
    st.caption(plain(f"{chosen.kind}{when}"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("Edit a copy", key="prompt-edit", on_click=_edit, args=(chosen,), type="tertiary")
        with st.popover("Rename", **widget_options(why, type="tertiary")):
            key = f"prompt-name-{name}"
            st.text_input("New name", name, key=key)
            button_unless(
                "Rename",
                why,
                key="prompt-rename",
                on_click=lambda: _try(lambda: prompts.rename_prompt(runs_root(), name, st.session_state[key]).name),
            )
        button_unless(
            "Remove",
            why,
            key="prompt-remove",
            on_click=lambda: _try(lambda: "" if prompts.remove_prompts(runs_root(), [name]) else name, removed=name),
            type="tertiary",
        )
    return chosen.asked, name


def save_section(one: OnePrompt) -> None:
    """A form that saves the prompt with its answer and facts."""
    with st.popover("Save this prompt", type="tertiary", icon=":material/bookmark_add:"):
        name = st.text_input("Name", key="prompt-save-name", placeholder="for example: needle in my notes")
        replace = st.checkbox("Replace the prompt of this name", key="prompt-save-replace")
        if st.button("Save", key="prompt-save", disabled=not name.strip()):
            try:
                saved = prompts.save_prompt(runs_root(), name, one, replace)
            except UserError as error:
                st.error(plain(str(error)))
                return
            st.success(plain(f"Saved as {saved.name}. Find it under Saved, or with kvlab prompts ls."))


def _try(change: Callable[[], str], removed: str = "") -> None:
    """Callback: apply a change that returns the name to choose next, "" for none; its error is shown on the page.

    `removed` is the prompt that the change removes, which can then be restored.
    """
    try:
        name = change()
    except UserError as error:
        st.session_state[REMOVED] = ("", str(error))
        return
    st.session_state[REMOVED] = (removed, "")
    # The browser shows the old choice until it gets another.
    left = [prompt.name for prompt in prompts.saved_prompts(runs_root(), st.session_state.get("prompt_words", ""))]
    if name or left:
        st.session_state[NAME] = name or left[0]
    else:
        st.session_state.pop(NAME, None)


def _edit(chosen: prompts.SavedPrompt) -> None:
    """Fill in the form with the saved prompt."""
    st.session_state["answer"] = chosen.answer or ""
    st.session_state["facts"] = "\n".join(chosen.prompt[start:stop] for start, stop in chosen.facts)
    if chosen.turns:
        set_turns([(turn.role, turn.content) for turn in chosen.turns])
        st.session_state["source"] = "Chat"
    else:
        st.session_state["pasted"] = chosen.prompt
        st.session_state["source"] = "Paste"
        st.session_state["pasted_question"] = ""
