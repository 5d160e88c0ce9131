"""The prompt as it will be read: the beginning with its facts marked, or the tokens of the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.text import plain
from app.figures.export_menu import Offer, menu
from app.new_run.prompt_preview import facts_as_html, tokens_as_html, tokens_as_text
from app.session.url_state import get_param, in_url
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.forms import compare_form, uploads
from kvlab.models.info.chat_template import ChatFormat, render_prompt
from kvlab.report.views import Passages, Text
from kvlab.requests.conversation import Turn
from kvlab.views.frames.textdiff import Segment

PREVIEW_CHARACTERS = 20_000
BOX_HEIGHT = 340  # of the prompt, pixels; new-run.css fits it to the window
READ = "The prompt of every method and of the full cache."


def preview(text: str, turns: tuple[Turn, ...] = (), facts: Sequence[tuple[int, int]] = ()) -> None:
    """The beginning of the prompt as plain text with its facts marked, or its tokens."""
    heading = st.container(horizontal=True, vertical_alignment="center", gap="small")
    with heading:
        with_tokens = tokens_wanted()
    if with_tokens:
        show_tokens(text, turns, heading)
        return
    with heading:
        menu(Offer("The prompt", lambda: as_passage(text), READ), "prompt-text")
    with st.container(height=BOX_HEIGHT, border=True, key="prompt-box"):
        if facts:
            st.html(facts_as_html(text[:PREVIEW_CHARACTERS], facts))
        else:
            st.text(text[:PREVIEW_CHARACTERS])
    if len(text) > PREVIEW_CHARACTERS:
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(text):,} characters.")


def as_passage(text: str) -> Passages:
    """The shown part of a prompt, for a slide."""
    return Passages(passages=(("", (Segment("same", text[:PREVIEW_CHARACTERS]),)),))


def tokens_wanted() -> bool:
    """The switch that shows tokens."""
    help_text = "The model's input with every other token shaded; text added by its chat template is in italics."
    return st.toggle("Show tokens", **in_url("show_tokens"), help=help_text)


def show_tokens(prompt: str, turns: tuple[Turn, ...] = (), heading: DeltaGenerator | None = None) -> None:
    """The tokens of the model's input, with its chat template if it has one; `heading` gets the export menu."""
    how = replace(manner_further_down(), turns=turns)
    try:
        read = render_prompt(prompt, how)
    except UserError as error:
        st.error(plain(str(error)))
        return
    shown = uploads.shorten_prompt(read, PREVIEW_CHARACTERS)
    spans = uploads.token_spans(shown.text, how.model)

    def content() -> Passages | Text:
        return as_passage(prompt) if spans is None else tokens_as_text(shown.text, spans, shown.own)

    with heading or st.container():
        offer = Offer("The prompt, token by token", content, READ, f"as {model_title(how.model)} reads it")
        menu(offer, "prompt-tokens")
    with st.container(height=BOX_HEIGHT, border=True, key="prompt-box"):
        if spans is None:
            st.text(prompt[:PREVIEW_CHARACTERS])
        else:
            st.html(tokens_as_html(shown.text, spans, shown.own))
    if spans is None:
        st.caption("The model's tokenizer is not on this machine, so its tokens are unknown.")
    elif read.templated:
        st.caption("Text added by the model's chat template is in italics.")
    if len(read.text) > len(shown.text):
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(prompt):,} characters.")


def manner_further_down() -> ChatFormat:
    """How the prompt is given to the model, from fields that are drawn later."""
    if (chat := str(further_down("chat", "auto"))) == "no":
        return ChatFormat(str(further_down("model", "mini")).strip(), "no")
    words = {"system": str(further_down("system", "")), "thinking": str(further_down("thinking", "template"))}
    return ChatFormat(str(further_down("model", "mini")).strip(), chat, **compare_form.request_fields(words))


def further_down(key: str, default: Any) -> Any:
    """The value of a widget that is drawn later, from the session or, in the first run, the URL."""
    return st.session_state.get(key) or get_param(key) or default
