"""Prompts that exceed the model's context window: the user chooses which part of them is left out."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.base.widgets import one_of
from app.figures.export_menu import Offer, show_title
from app.new_run.answer import Question, plant_needle
from app.new_run.prompt_view import cut_as_html, cut_as_passages, further_down
from app.session.url_state import parse_number
from kvlab.common.formatting import model_title
from kvlab.forms import uploads
from kvlab.models.info.chat_template import ChatFormat
from kvlab.requests.facts import find_facts

NEW_TOKENS = 64
NEEDLE_TOKENS = 80  # of a planted needle and its question


def fitted_question(question: Question, how: ChatFormat) -> Question:
    """The question with its prompts cut as the user chooses where they do not fit; conversations are not cut."""
    if question.repeats:
        text = cut_section(question.text, how, NEEDLE_TOKENS)
        return question if text == question.text else plant_needle(text, question.repeats, question.notes)
    if question.several:
        return _several(question, how)
    if question.turns:
        _too_long(question.prompt, how)
        return question
    # The question for the cut prompt, with the facts that are left in it.
    prompt = cut_section(question.prompt, how)
    if prompt == question.prompt:
        return question
    words = [question.prompt[start:stop] for start, stop in question.facts]
    left = [fact for fact in words if fact in prompt]
    if len(left) < len(words):
        st.warning("The cut removes words that the answer depends on.", icon=":material/content_cut:")
    return replace(question, prompt=prompt, facts=find_facts(prompt, left))


def new_tokens() -> int:
    """The number of new tokens, from the field that is drawn later."""
    return parse_number(str(further_down("max_new_tokens", NEW_TOKENS))) or NEW_TOKENS


def cut_section(prompt: str, how: ChatFormat, extra: int = 0) -> str:
    """The prompt, cut as the user chooses if it does not fit, with a preview of the cut.

    `extra` tokens will be added to it.
    """
    over = uploads.excess_tokens(prompt, how, extra + new_tokens()) if prompt.strip() else 0
    keep = part_to_keep(over) if over else None
    if keep is None:
        return prompt
    cut = uploads.truncate_prompt(prompt, how, extra + new_tokens(), keep)
    caption = f"{len(cut.removed):,} characters are left out. The text is cut here:"
    st.caption(caption)
    offer = Offer(
        "Where the prompt is cut", lambda: cut_as_passages(cut), caption, f"prompt for {model_title(how.model)}"
    )
    show_title(offer, "cut-text")
    with st.container(height=180, border=True):
        st.html(cut_as_html(cut))
    return cut.text


def part_to_keep(over: int) -> uploads.Keep | None:
    """The part to keep of a prompt that is `over` tokens too long; None to leave it uncut."""
    st.warning(
        f"Prompt and new tokens exceed the model's context window by {over:,} tokens.", icon=":material/content_cut:"
    )
    keep = one_of("Cut the prompt, and keep", ["nothing cut", *uploads.KEEPS], key="cut")
    return next((part for part in uploads.KEEPS if part == keep), None)


def _too_long(prompt: str, how: ChatFormat) -> int:
    """By how many tokens a prompt is too long, with a warning for a conversation, which is not cut."""
    over = uploads.excess_tokens(prompt, how, new_tokens())
    if over and how.turns:
        st.warning(f"Conversation and new tokens exceed the model's context window by {over:,} tokens: shorten a turn.")
    return over


def _several(question: Question, how: ChatFormat) -> Question:
    over = _too_long(question.prompt, how)
    keep = part_to_keep(over) if over and not how.turns else None
    if keep is None:
        return question
    cut, lost = uploads.truncate_prompts(question.several, how, new_tokens(), keep)
    st.caption(f"{sum(lost.values()):,} characters in {len(lost)} prompts are left out.")
    return replace(question, several=cut)
