"""Where the prompt of a new run comes from: a sample, pasted text or a file; shown as it is, tokens on demand."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.parts.prompt_preview import tokens_as_html
from app.parts.text import plain
from kvlab.errors import UserError
from kvlab.jobs import cutting, intake, uploads
from kvlab.jobs.prompts import check_prompt
from kvlab.jobs.spoken import Manner, spoken
from kvlab.tasks.shipped_samples import shipped_samples

SOURCES = ("Sample", "Paste", "Upload")
PREVIEW_CHARACTERS = 20_000
LINKED_CHARACTERS = 2_000  # of a pasted prompt, in the address


def prompt_section() -> tuple[str, str]:
    """The prompt from the chosen source, shown as it is, and a title for it; empty when it cannot be used."""
    st.subheader("Prompt")
    source = st.segmented_control(
        "Where from",
        SOURCES,
        default="Sample",
        key="source",
        bind="query-params",
        required=True,
        label_visibility="collapsed",
    )
    read = {"Paste": pasted_prompt, "Upload": uploaded_prompt}.get(source, sample_prompt)
    try:
        return read()
    except UserError as error:
        st.error(plain(str(error)))
        return "", ""


def sample_prompt() -> tuple[str, str]:
    """The text and title of a prompt that ships with kvlab."""
    by_title = {sample.title: sample for sample in shipped_samples()}
    chosen = by_title[st.selectbox("Sample", list(by_title), key="sample", bind="query-params")]
    st.markdown(plain(chosen.description))
    st.caption(f"Look for: {plain(chosen.look_for)}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        budget = f"{100 * chosen.suggested_budget:g}%"
        st.caption(f"Suggested: a budget of {budget} and {chosen.max_new_tokens} new tokens.", width="content")
        st.button("Use these", on_click=suggest, args=(budget, chosen.max_new_tokens), type="tertiary", key="suggest")
    preview(chosen.text)
    return chosen.text, chosen.title


def suggest(budget: str, new_tokens: int) -> None:
    """Called before the script runs again: fills in what the sample suggests."""
    st.session_state["budgets"], st.session_state["max_new_tokens"] = budget, new_tokens


def pasted_prompt() -> tuple[str, str]:
    """What is typed or pasted. The address carries it while it is short; raises UserError where it cannot be run."""
    if "pasted" not in st.session_state:
        st.session_state["pasted"] = st.query_params.get("text", "")
    text = st.text_area(
        "Text", key="pasted", height=640, placeholder="Paste a prompt", persist_state="page", on_change=remember_pasted
    )
    if text.strip():
        check_prompt(text)
    if len(text) > LINKED_CHARACTERS:
        st.caption(f"A link to this page leaves the text out: it carries at most {LINKED_CHARACTERS:,} characters.")
    if text.strip() and tokens_wanted():
        show_tokens(text)
    return text, ""


def remember_pasted() -> None:
    text = st.session_state["pasted"]
    if 0 < len(text) <= LINKED_CHARACTERS:
        st.query_params["text"] = text
    else:
        st.query_params.pop("text", None)


def uploaded_prompt() -> tuple[str, str]:
    """The text and name of an uploaded file; of a table, the text of one row."""
    label = "Text or Markdown, or a table of prompts as JSON lines or CSV; UTF-8, up to 2 MB"
    file = st.file_uploader(label, type=list(uploads.TYPES), key="upload")
    if file is None:
        return "", ""
    upload = uploads.read_upload(file.name, file.getvalue())
    if not upload.rows:
        preview(upload.text)
        return upload.text, file.name
    left, right = st.columns([2, 1])
    with left:
        column = st.selectbox(
            "Column" if file.name.endswith(".csv") else "Field", upload.fields, key="upload_field", bind="query-params"
        )
    with right:
        row = int(
            st.number_input(
                f"Row of {len(upload.rows):,}", 1, len(upload.rows), 1, key="upload_row", bind="query-params"
            )
        )
    text = upload.pick(row - 1, column)
    preview(text)
    return text, f"{file.name}, row {row}"


def preview(text: str) -> None:
    """The beginning of the prompt, letter by letter: nothing in it is read as Markdown or HTML."""
    if tokens_wanted():
        show_tokens(text)
        return
    with st.container(height=560, border=True):
        st.text(text[:PREVIEW_CHARACTERS])
    if len(text) > PREVIEW_CHARACTERS:
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(text):,} characters.")


def tokens_wanted() -> bool:
    """Whether tokens are to be shown."""
    explanation = "What the model is given, every other token shaded; what its chat template puts around is in italics."
    return st.toggle("Show tokens", key="show_tokens", bind="query-params", help=explanation)


def show_tokens(prompt: str) -> None:
    """The prompt as the model will be given it, token by token: in its chat template where it has one."""
    how = manner_further_down()
    try:
        read = spoken(prompt, how)
    except UserError as error:
        st.error(plain(str(error)))
        return
    shown = cutting.shortened(read, PREVIEW_CHARACTERS)
    spans = cutting.token_spans(shown.text, how.model)
    with st.container(height=560, border=True):
        if spans is None:
            st.text(prompt[:PREVIEW_CHARACTERS])
        else:
            st.html(tokens_as_html(shown.text, spans, shown.own))
    if spans is None:
        st.caption("The model's tokenizer is not on this machine, so its tokens are not known.")
    elif read.templated:
        st.caption("In italics: what the model's chat template puts around the prompt.")
    if len(read.text) > len(shown.text):
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(prompt):,} characters.")


def manner_further_down() -> Manner:
    """How the prompt is put to the model, as the fields of the form that are drawn later say."""
    if (chat := str(further_down("chat", "auto"))) == "no":
        return Manner(str(further_down("model", "mini")).strip(), "no")
    words = {"system": str(further_down("system", "")), "thinking": str(further_down("thinking", "template"))}
    return Manner(str(further_down("model", "mini")).strip(), chat, **intake.meant(words))


def further_down(key: str, default: Any) -> Any:
    """The value of a widget that is drawn later: in the session, or in the address before the first time."""
    return st.session_state.get(key) or st.query_params.get(key) or default
