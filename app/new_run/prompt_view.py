"""The prompt as it will be read: the beginning with its facts marked, or the tokens of the model's input."""

import html
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.base.text import plain
from app.figures.export_menu import Offer, menu
from app.session.url_state import get_param, in_url
from kvlab.common.formatting import model_title
from kvlab.core.errors import UserError
from kvlab.forms import compare_form, uploads
from kvlab.models.info.chat_template import ChatFormat, render_prompt
from kvlab.report.views import Passages, Text, TokenClass
from kvlab.requests.conversation import Turn
from kvlab.views.base.palette import HUES
from kvlab.views.frames.textdiff import Segment

AROUND = 400  # characters shown on each side of a cut
TOKENS = (
    TokenClass(name="a token", colour=HUES["blue"], cue="fill"),
    TokenClass(name="the next one", colour=HUES["orange"], cue="under"),
    TokenClass(name="of the chat template", colour=HUES["grey"], cue="dashed"),
)
STYLE = """<style>
.kv-prompt { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6; font-size: 0.92rem; }
.kv-prompt i { font-style: normal; border-radius: 2px; }
.kv-prompt i:nth-child(odd) { background: rgba(0, 104, 168, 0.20); }
.kv-prompt i:nth-child(even) { background: rgba(201, 119, 0, 0.20); border-bottom: 1px solid rgba(201, 119, 0, 0.8); }
.kv-prompt i.around { font-style: italic; font-family: monospace; font-size: 0.82rem; opacity: 0.8; }
.kv-prompt mark { color: inherit; background: rgba(201, 119, 0, 0.28); border-bottom: 2px solid #c97700; }
.kv-prompt del { opacity: 0.8; background: rgba(200, 80, 10, 0.18); }
</style>"""


def tokens_as_html(text: str, spans: list[tuple[int, int]], prompt_span: tuple[int, int] | None = None) -> str:
    """The text with every other token shaded and underlined; text outside of tokens is plain.

    `prompt_span` (start, stop) is the prompt's place in the text; the chat template's tokens around it are marked.
    """
    first, last = prompt_span or (0, len(text))
    parts = []
    end = 0
    for start, stop in spans:
        tag = "<i>" if first <= start < last else '<i class="around" title="of the chat template">'
        parts += [html.escape(text[end:start]), f"{tag}{html.escape(text[max(start, end) : stop])}</i>"]
        end = max(end, stop)
    tokens = "".join([*parts, html.escape(text[end:])])
    return f'{STYLE}<div class="kv-prompt" data-testid="tokens">{tokens}</div>'


def tokens_as_text(text: str, spans: list[tuple[int, int]], prompt_span: tuple[int, int] | None = None) -> Text:
    """The same for a slide; characters between two tokens belong to the first."""
    first, last = prompt_span or (0, len(text))
    starts = [0, *(start for start, _ in spans[1:]), len(text)]
    codes = tuple(at % 2 if first <= start < last else 2 for at, (start, _) in enumerate(spans))
    return Text(texts=tuple(text[start:stop] for start, stop in pairwise(starts)), codes=codes or (0,), classes=TOKENS)


def facts_as_html(text: str, facts: Sequence[tuple[int, int]]) -> str:
    """The text with its facts (start, stop) marked."""
    parts = []
    end = 0
    for start, stop in sorted(facts):
        parts += [html.escape(text[end:start]), f"<mark>{html.escape(text[max(start, end) : stop])}</mark>"]
        end = max(end, stop)
    return f'{STYLE}<div class="kv-prompt">{"".join(parts)}{html.escape(text[end:])}</div>'


def cut_as_passages(cut: uploads.TruncatedPrompt) -> Passages:
    """The text around the cut, and the beginning and end of the removed part."""
    removed = (
        cut.removed
        if len(cut.removed) <= 2 * AROUND
        else f"{cut.removed[:AROUND]} … {len(cut.removed) - 2 * AROUND:,} more characters … {cut.removed[-AROUND:]}"
    )
    parts = (Segment("same", cut.before[-AROUND:]), Segment("missing", removed), Segment("same", cut.after[:AROUND]))
    return Passages(passages=(("", parts),))


def cut_as_html(cut: uploads.TruncatedPrompt) -> str:
    """The same as HTML, with the removed part struck out."""
    ((_, (before, removed, after)),) = cut_as_passages(cut).passages
    marked = f"{html.escape(before.text)}<del>{html.escape(removed.text)}</del>{html.escape(after.text)}"
    return f'{STYLE}<div class="kv-prompt">{marked}</div>'


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
    # How the prompt is given to the model, from fields that are drawn later.
    chat = str(further_down("chat", "auto"))
    how = ChatFormat(str(further_down("model", "mini")).strip(), chat, turns=turns)
    if chat != "no":
        words = {"system": str(further_down("system", "")), "thinking": str(further_down("thinking", "template"))}
        how = replace(how, **compare_form.request_fields(words))
    try:
        read = render_prompt(prompt, how)
    except UserError as error:
        st.error(plain(str(error)))
        return
    shown = uploads.shorten_prompt(read, PREVIEW_CHARACTERS)
    spans = uploads.token_spans(shown.text, how.model)
    with heading or st.container():
        offer = Offer(
            "The prompt, token by token",
            lambda: as_passage(prompt) if spans is None else tokens_as_text(shown.text, spans, shown.prompt_span),
            READ,
            f"as {model_title(how.model)} reads it",
        )
        menu(offer, "prompt-tokens")
    with st.container(height=BOX_HEIGHT, border=True, key="prompt-box"):
        if spans is None:
            st.text(prompt[:PREVIEW_CHARACTERS])
        else:
            st.html(tokens_as_html(shown.text, spans, shown.prompt_span))
    if spans is None:
        st.caption("The model's tokenizer is not on this machine, so its tokens are unknown.")
    elif read.templated:
        st.caption("Text added by the model's chat template is in italics.")
    if len(read.text) > len(shown.text):
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(prompt):,} characters.")


def further_down(key: str, default: Any) -> Any:
    """The value of a widget that is drawn later, from the session or, in the first run, the URL."""
    return st.session_state.get(key) or get_param(key) or default
