"""One's own prompts on the form of a new run: chosen by name, searched, renamed, removed with undo, and saved."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.base import permission
from app.base.text import plain
from app.navigation.selection import runs_root
from app.new_run.prompt_chat import keep_turns
from kvlab.common.errors import UserError
from kvlab.library import prompts
from kvlab.requests.compare import OnePrompt

NAME = "prompt"  # the parameter of the address
REMOVED = "prompt-removed"


def from_the_address() -> None:
    """`?prompt=NAME` alone chooses the saved prompts."""
    if NAME in st.query_params and "source" not in st.query_params and "source" not in st.session_state:
        st.session_state["source"] = "Saved"


def saved_prompt() -> tuple[OnePrompt, str]:
    """The chosen prompt with its answer and facts, and its name; empty where nothing is saved."""
    words = st.text_input("Search", key="prompt_words", bind="query-params", placeholder="words of name or text")
    found = {one.name: one for one in prompts.saved_prompts(runs_root(), words)}
    _undo()
    if not found:
        none = "No saved prompt holds these words." if words.strip() else "Nothing is saved yet."
        st.info(f"{none} Any prompt of this form can be saved: the button stands below its answer.")
        return OnePrompt(prompt=""), ""
    name = st.selectbox("Prompt", list(found), key=NAME, bind="query-params")
    chosen = found[name]
    why = permission.why_not_change([chosen.owner])
    when = f", saved {chosen.saved[:10]}" if chosen.saved else ""
    st.caption(plain(f"{chosen.kind}{when}"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("Edit a copy", key="prompt-edit", on_click=_edit, args=(chosen,), type="tertiary")
        with st.popover("Rename", **permission.dead(why, type="tertiary")):
            st.text_input("New name", name, key=f"prompt-name-{name}")
            permission.button("Rename", why, key="prompt-rename", on_click=_rename, args=(name,))
        permission.button("Remove", why, key="prompt-remove", on_click=_remove, args=(name,), type="tertiary")
    return chosen.asked, name


def save_section(one: OnePrompt) -> None:
    """Keep the prompt with its answer and facts under a name."""
    with st.popover("Save this prompt", **permission.dead(permission.why_not(), icon=":material/bookmark_add:")):
        name = st.text_input("Name", key="prompt-save-name", placeholder="such as: needle in my notes")
        replace = st.checkbox("Replace the one of this name", key="prompt-save-replace")
        if permission.button("Save", permission.why_not(), key="prompt-save", disabled=not name.strip()):
            try:
                saved = prompts.save_prompt(runs_root(), name, one, replace)
            except UserError as error:
                st.error(plain(str(error)))
                return
            st.success(plain(f"Saved as {saved.name}: it stands under Saved, and in kvlab prompts ls."))


def _rename(name: str) -> None:
    """Called before the script runs again, as all below."""
    _try(lambda: prompts.rename_prompt(runs_root(), name, st.session_state[f"prompt-name-{name}"]).name)


def _try(change: Callable[[], str]) -> None:
    """Make a change whose outcome is the name to choose next, "" for none; what cannot be is said on the page."""
    st.session_state[REMOVED] = ("", "")
    try:
        name = change()
    except UserError as error:
        st.session_state[REMOVED] = ("", str(error))
        return
    # A browser keeps showing what was chosen until it is told another.
    left = [one.name for one in prompts.saved_prompts(runs_root(), st.session_state.get("prompt_words", ""))]
    if name or left:
        st.session_state[NAME] = name or left[0]
    else:
        st.session_state.pop(NAME, None)


def _edit(chosen: prompts.SavedPrompt) -> None:
    """The form is filled with what was saved."""
    st.session_state["answer"] = chosen.answer or ""
    st.session_state["facts"] = "\n".join(chosen.prompt[start:stop] for start, stop in chosen.facts)
    if chosen.turns:
        keep_turns([(turn.role, turn.content) for turn in chosen.turns])
        st.session_state["source"] = "Chat"
    else:
        st.session_state["pasted"], st.session_state["source"] = chosen.prompt, "Paste"


def _remove(name: str) -> None:
    _try(lambda: "" if prompts.remove_prompts(runs_root(), [name]) else name)
    if not st.session_state[REMOVED][1]:
        st.session_state[REMOVED] = (name, "")


def _undo() -> None:
    name, problem = st.session_state.get(REMOVED, ("", ""))
    if problem:
        st.error(plain(problem))
    if name:
        st.button(
            f"Bring {plain(name)} back", icon=":material/undo:", key="prompt-undo", on_click=_bring_back, args=(name,)
        )


def _bring_back(name: str) -> None:
    _try(lambda: prompts.restore_prompt(runs_root(), name).name)
