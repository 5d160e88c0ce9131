"""The user's saved prompts on the form New run: search, choose, rename, remove with undo, and save."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.base.text import plain
from app.base.widgets import button_unless, why_not_change, widget_options
from app.navigation.selection import runs_root
from app.new_run.prompt_chat import set_turns
from app.session.url_state import in_url, params
from kvlab.core.errors import UserError
from kvlab.library import prompts
from kvlab.requests.compare import OnePrompt

NAME = "prompt"  # the URL parameter
REMOVED = "prompt-removed"


def choose_from_url() -> None:
    """Make `?prompt=NAME` alone choose the source Saved."""
    if NAME in params() and "source" not in params() and "source" not in st.session_state:
        st.session_state["source"] = "Saved"


def saved_prompt() -> tuple[OnePrompt, str]:
    """The chosen prompt with its answer and facts, and its name; empty if nothing is saved."""
    words = st.text_input("Search", **in_url("prompt_words"), placeholder="words of the name or text")
    saved = {prompt.name: prompt for prompt in prompts.saved_prompts(runs_root(), words)}
    _undo()
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
            st.text_input("New name", name, key=f"prompt-name-{name}")
            button_unless("Rename", why, key="prompt-rename", on_click=_rename, args=(name,))
        button_unless("Remove", why, key="prompt-remove", on_click=_remove, args=(name,), type="tertiary")
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


def _rename(name: str) -> None:
    """A callback, as all functions below."""
    _try(lambda: prompts.rename_prompt(runs_root(), name, st.session_state[f"prompt-name-{name}"]).name)


def _try(change: Callable[[], str]) -> None:
    """Apply a change that returns the name to choose next, "" for none; its error is shown on the page."""
    st.session_state[REMOVED] = ("", "")
    try:
        name = change()
    except UserError as error:
        st.session_state[REMOVED] = ("", str(error))
        return
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


def _remove(name: str) -> None:
    _try(lambda: "" if prompts.remove_prompts(runs_root(), [name]) else name)
    if not st.session_state[REMOVED][1]:
        st.session_state[REMOVED] = (name, "")


def _undo() -> None:
    name, problem = st.session_state.get(REMOVED, ("", ""))
    if problem:
        st.error(plain(problem))
    if name:
        st.button(f"Restore {plain(name)}", icon=":material/undo:", key="prompt-undo", on_click=_restore, args=(name,))


def _restore(name: str) -> None:
    _try(lambda: prompts.restore_prompt(runs_root(), name).name)
