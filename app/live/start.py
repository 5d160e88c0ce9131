"""The form of a new live session: a context, a model, and the lanes; or kept prefixes, which have all three."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from pydantic import ValidationError
from streamlit.delta_generator import DeltaGenerator

from app.base.text import plain
from app.base.widgets import button_unless, one_of
from app.live.sessions import open_session
from app.live.start_prefixes import lanes_section, text_section
from app.navigation.proposed_model import propose_model
from app.navigation.selection import runs_root
from app.new_run.method_section import hyper_parameter_section, method_section
from app.new_run.packaged_models import download_buttons
from app.new_run.prompt_library import saved_prompt
from app.session.url_state import in_url, set_param
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.validation import in_one_sentence
from kvlab.forms import compare_form
from kvlab.forms.uploads import TEXTS, read_upload
from kvlab.library.prefixes import live_request
from kvlab.requests.live_session import LiveRequest
from kvlab.tasks.shipped_samples import shipped_samples

PREFIX = "Prefix"
SOURCES = ("Sample", "Paste", "File", "Saved", PREFIX)
DEFAULT = ("snapkv", "keepkv", "exactmerge2")
MOST = 3


def start_form() -> None:
    """The form; its button opens a session and shows it."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        source = one_of("Context", SOURCES, key="source", help="Prefix: a text that was read before and kept")
    if source == PREFIX:
        prefix_form(left, right)
        return
    with left:
        context = context_section(source)
    with right:
        propose_model("model")
        model = st.text_input("Model", "mini", **in_url("model"))
        download_buttons()
        chosen, budgets = method_section(0, label="Methods beside the full cache", usual=DEFAULT)
        chosen = [entry for entry in chosen if entry.name != FULL.method]
        typed = hyper_parameter_section(chosen)
    why = "" if context.strip() else "Give a context first."
    why = why or ("" if chosen else "Choose at least one method.")
    if button_unless("Read the context", why, type="primary", icon=":material/play_arrow:", key="live-start"):
        begin(lambda: read_request(context, model.strip(), compare_form.choices_of_form(chosen, typed, budgets)))


def prefix_form(left: DeltaGenerator, right: DeltaGenerator) -> None:
    """The form for kept prefixes; its button opens them as a session, in which nothing is read."""
    with right:
        propose_model("model")
        model = st.text_input("Model", "mini", **in_url("model")).strip()
    with left:
        text = text_section(model)
    with right:
        lanes = lanes_section(text) if text is not None else ()
    why = "" if text else "There is no prefix to open."
    why = why or ("" if lanes else "Choose at least one prefix.")
    if button_unless("Open the prefixes", why, type="primary", icon=":material/play_arrow:", key="live-start"):
        begin(lambda: live_request(runs_root(), [file.name for file in lanes]))


def read_request(context: str, model: str, lanes: tuple[MethodChoice, ...]) -> LiveRequest:
    """A session that reads a context. Raises UserError for too many lanes."""
    if len(lanes) > MOST:
        raise UserError(f"That would be {len(lanes)} lanes beside the full cache: choose at most {MOST}.")
    return LiveRequest(model=model, context=context, choices=lanes)


def begin(build: Callable[[], LiveRequest]) -> None:
    """Open a session and show it, or say why that is impossible."""
    try:
        request = build()
    except (UserError, ValidationError) as error:
        st.error(plain(in_one_sentence(error) if isinstance(error, ValidationError) else str(error)))
        return
    if session := open_session(request):
        set_param("session", session)
        st.rerun()


def context_section(source: str) -> str:
    """The text to talk about."""
    if source == "Paste":
        return st.text_area("Text", height=320, key="live-pasted", placeholder="Paste a text to talk about")
    if source == "File":
        return read_uploaded_text()
    if source == "Saved":
        return saved_prompt()[0].prompt
    samples = {sample.title: sample for sample in shipped_samples()}
    sample = samples[st.selectbox("Sample", list(samples), **in_url("sample"))]
    with st.container(height=280):
        st.text(sample.context)
    if sample.answer:
        st.caption(plain(f"{sample.description} Ask for it: the answer is {sample.answer}."))
    return sample.context


def read_uploaded_text() -> str:
    """The text of an uploaded document; "" without one."""
    file = st.file_uploader("A text, PDF, DOCX or HTML file or a notebook", list(TEXTS), key="live-upload")
    if file is None:
        return ""
    try:
        upload = read_upload(file.name, file.getvalue())
    except UserError as error:
        st.error(plain(str(error)))
        return ""
    for note in upload.left_out:
        st.caption(plain(note))
    with st.container(height=240):
        st.text(upload.text[:20_000])
    return upload.text
