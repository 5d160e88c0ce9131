"""Where the prompt of a new run comes from: a sample, text, turns, files or what was saved; tokens on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.segmented import one_of
from app.base.text import plain, shorten
from app.figures.export_menu import Offer, titled
from app.new_run.prompt_chat import chat_prompt
from app.new_run.prompt_library import from_the_address, saved_prompt
from app.new_run.prompt_preview import tokens_as_html, tokens_as_text
from kvlab.analysis.comparison.textdiff import Segment
from kvlab.common.errors import UserError
from kvlab.documents.document import LARGEST_BYTES
from kvlab.forms import compare_form, truncation, uploads
from kvlab.model_info.chat_template import ChatFormat, render_prompt
from kvlab.model_info.token_count import check_prompt
from kvlab.report.views import Passages, Text
from kvlab.requests.compare import OnePrompt
from kvlab.requests.conversation import Turn
from kvlab.requests.facts import check_answer
from kvlab.requests.repeats import MOST_REPEATS
from kvlab.tasks.shipped_samples import shipped_samples

SOURCES = ("Sample", "Paste", "Chat", "Upload", "Saved")
NOTHING = OnePrompt(prompt="")
PREVIEW_CHARACTERS = 20_000
TABLE_HEIGHT, ROW_HEIGHT = 260, 35  # of the table of prompts, pixels
EVERY = "upload_many"  # whether all rows of a table are run
LINKED_CHARACTERS = 2_000  # of a pasted prompt, in the address
READ = "What every method reads, and the full cache beside them."


@dataclass(frozen=True)
class Given:
    """A prompt and its title; of several prompts all of them, and the longest as the one.

    `brings_answer` where answer and facts came with it, as those of a saved prompt or of a row do.
    """

    one: OnePrompt = NOTHING
    title: str = ""
    several: tuple[OnePrompt, ...] = ()
    brings_answer: bool = False


def prompt_section() -> Given:
    """The prompt from the chosen source, shown as it is; empty when it cannot be used."""
    st.subheader("Prompt")
    from_the_address()
    source = one_of("Where from", SOURCES, "Sample", key="source", label_visibility="collapsed")
    read = {"Paste": pasted_prompt, "Chat": typed_chat, "Upload": uploaded_prompt, "Saved": saved_one}
    try:
        return read.get(source, sample_prompt)()
    except UserError as error:
        st.error(plain(str(error)))
        return Given()


def sample_prompt() -> Given:
    """A prompt that ships with kvlab."""
    by_title = {sample.title: sample for sample in shipped_samples()}
    chosen = by_title[st.selectbox("Sample", list(by_title), key="sample", bind="query-params")]
    st.markdown(plain(chosen.description))
    st.caption(f"Look for: {plain(chosen.look_for)}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        budget = f"{100 * chosen.suggested_budget:g}%"
        st.caption(f"Suggested: a budget of {budget} and {chosen.max_new_tokens} new tokens.", width="content")
        st.button("Use these", on_click=suggest, args=(budget, chosen.max_new_tokens), type="tertiary", key="suggest")
    preview(chosen.text)
    return Given(OnePrompt(prompt=chosen.text), chosen.title)


def suggest(budget: str, new_tokens: int) -> None:
    """Called before the script runs again: fills in what the sample suggests."""
    st.session_state["budgets"], st.session_state["max_new_tokens"] = budget, new_tokens


def typed_chat() -> Given:
    """A conversation, shown as the model reads it."""
    one = chat_prompt()
    if one.prompt and tokens_wanted():
        show_tokens(one.prompt, one.turns)
    return Given(one)


def saved_one() -> Given:
    """A prompt of one's own library."""
    one, name = saved_prompt()
    if one.prompt:
        preview(one.prompt, one.turns)
    return Given(one, name, brings_answer=True)


def pasted_prompt() -> Given:
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
    return Given(OnePrompt.model_construct(name="", prompt=text, turns=(), answer=None, facts=()))


def remember_pasted() -> None:
    text = st.session_state["pasted"]
    if 0 < len(text) <= LINKED_CHARACTERS:
        st.query_params["text"] = text
    else:
        st.query_params.pop("text", None)


def uploaded_prompt() -> Given:
    """The text of an uploaded file; of a table every row, or those chosen; of several files all of them."""
    label = (
        "Text, Markdown, PDF, DOCX or HTML; or prompts and conversations as JSON lines, JSON, CSV or Parquet, one a "
        "row; one file or several"
    )
    given = {"type": list(uploads.TYPES), "accept_multiple_files": True, "max_upload_size": LARGEST_BYTES // 2**20}
    files = st.file_uploader(label, **permission.dead(permission.why_not(), key="upload", on_change=_lighter, **given))
    found = [_read(file) for file in files or ()]
    if not found:
        return Given()
    table = found[0] if len(found) == 1 and found[0].rows else None
    field, rows = "", slice(None)
    if table is not None:
        left, right = st.columns([2, 1])
        with left:
            field = _field(table)
        if len(table.rows) > 1:
            if not _every_row(table, right):
                return _one_of(table, field)
            rows = _rows(table)
    chosen = uploads.prompts_of(found, field, rows)
    if len(chosen) == 1:
        return _shown(chosen[0], found[0].name)
    chosen = _with_answers(chosen)
    names = [f"{number} of {len(chosen)}: {one.name}" for number, one in enumerate(chosen, 1)]
    look = st.selectbox("Look at", names, key="upload_look", bind="query-params")
    at = names.index(look) if look in names else 0
    _tell(uploads.notes_of(chosen))
    preview(chosen[at].prompt, chosen[at].turns)
    longest = max(chosen, key=lambda one: len(one.prompt))
    title = found[0].name if len(found) == 1 else f"{len(found)} files: {', '.join(one.name for one in found)}"
    return Given(longest, shorten(title, 90), tuple(chosen))


def _field(table: uploads.Upload) -> str:
    """The column whose text alone is the prompt; none: as the rows are read."""
    return st.selectbox(
        "Prompt",
        ["", *table.fields],
        key="upload_field",
        bind="query-params",
        format_func=lambda name: name or f"as its columns say: {table.usual}",
        help="Of a table with a context, its question is read after it. A column chosen here is read alone",
    )


def _with_answers(chosen: Sequence[OnePrompt]) -> list[OnePrompt]:
    """Every prompt on a line, with what is right as the reader leaves it.

    Raises:
        UserError: an answer that is typed cannot be looked for.
    """
    known = [" or ".join(filter(None, (one.answer, *one.other_answers))) for one in chosen]
    lines = pd.DataFrame(
        {
            "name": [one.name for one in chosen],
            "answer": known,
            "prompt": [shorten(" ".join(one.prompt[:400].split()), 120) for one in chosen],
            "characters": [len(one.prompt) for one in chosen],
        },
        index=pd.RangeIndex(1, len(chosen) + 1),
    )
    of = hash(tuple(lines.itertuples()))  # what was typed for other prompts is not theirs
    edited = st.data_editor(
        lines,
        height=min(TABLE_HEIGHT, ROW_HEIGHT * (len(chosen) + 1) + 3),
        disabled=["name", "prompt", "characters"],
        column_config={"answer": st.column_config.TextColumn(help="What is right: type another, or none")},
        alt="One row a prompt: its name, what is right, how it begins, and its length",
        key=f"upload-answers-{of}",
    )
    typed = zip(chosen, known, edited["answer"].fillna(""), strict=True)
    return [one if text == before else _answered(one, str(text)) for one, before, text in typed]


def _answered(one: OnePrompt, answer: str) -> OnePrompt:
    return one.model_copy(update={"answer": check_answer(answer) if answer.strip() else None, "other_answers": ()})


def _read(file: Any) -> uploads.Upload:
    uploads.check_upload(file.name, file.size)
    found = _uploaded(file.name, file.getvalue())
    if isinstance(found, str):
        raise UserError(found)
    return found


@st.cache_data(max_entries=64, show_spinner="Reading the file")
def _uploaded(name: str, content: bytes) -> uploads.Upload | str:
    """What the file holds, or the sentence that says why it cannot be used: either is found once."""
    try:
        return uploads.read_upload(name, content)
    except UserError as error:
        return str(error)


def _lighter() -> None:
    """Called before the script runs again: several prompts are recorded lightly, unless the reader says otherwise."""
    files = st.session_state.get("upload") or ()
    if len(files) > 1 or (files and st.session_state.get(EVERY, _every_at_first()) and _has_rows(files[0])):
        st.session_state["level"] = "light"


def _has_rows(file: Any) -> bool:
    try:
        return len(_read(file).rows) > 1
    except UserError:  # said where the file is shown
        return False


def _every_at_first() -> bool:
    """Every row, unless the address names one."""
    return "upload_row" not in st.query_params


def _every_row(table: uploads.Upload, beside: Any) -> bool:
    with beside:
        st.space("small")
        return st.toggle(
            f"All of {len(table.rows):,} rows",
            _every_at_first(),
            key=EVERY,
            bind="query-params",
            on_change=_lighter,
            help="One comparison a row, one after another, and what they say together with intervals",
        )


def _rows(table: uploads.Upload) -> slice:
    count, left, right = len(table.rows), *st.columns(2)
    with left:
        first = int(st.number_input("From row", 1, count, 1, key="upload_first", bind="query-params"))
    with right:
        last = int(
            st.number_input("To row", 1, count, min(count, MOST_REPEATS), key="upload_last", bind="query-params")
        )
    if last < first:
        raise UserError(f"The rows end before they begin: give a last row of {first} or more.")
    return slice(first - 1, last)


def _one_of(upload: uploads.Upload, field: str) -> Given:
    """One row of a table."""
    count = len(upload.rows)
    row = int(st.number_input(f"Row of {count:,}", 1, count, 1, key="upload_row", bind="query-params")) - 1
    return _shown(upload.one(row, field), f"{upload.name}, row {row + 1}")


def _shown(one: OnePrompt, title: str) -> Given:
    """The prompt as the model will read it, under what of the file is not in it."""
    _tell(one.notes)
    preview(one.prompt, one.turns)
    return Given(one, title, brings_answer=one.answer is not None)


def _tell(notes: Sequence[str]) -> None:
    """Show which parts of the files were left out of the prompts."""
    if notes:
        st.info(plain(" ".join(notes)), icon=":material/content_cut:")


def preview(text: str, turns: tuple[Turn, ...] = ()) -> None:
    """The beginning of the prompt, letter by letter: nothing in it is read as Markdown or HTML."""
    if tokens_wanted():
        show_tokens(text, turns)
        return
    titled(Offer("The prompt", lambda: as_passage(text), READ), "prompt-text")
    with st.container(height=560, border=True):
        st.text(text[:PREVIEW_CHARACTERS])
    if len(text) > PREVIEW_CHARACTERS:
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(text):,} characters.")


def as_passage(text: str) -> Passages:
    """What of a prompt is shown, as a slide keeps it."""
    return Passages(passages=(("", (Segment("same", text[:PREVIEW_CHARACTERS]),)),))


def tokens_wanted() -> bool:
    """Whether tokens are to be shown."""
    explanation = "What the model is given, every other token shaded; what its chat template puts around is in italics."
    return st.toggle("Show tokens", key="show_tokens", bind="query-params", help=explanation)


def show_tokens(prompt: str, turns: tuple[Turn, ...] = ()) -> None:
    """The prompt as the model will be given it, token by token: in its chat template where it has one."""
    how = replace(manner_further_down(), turns=turns)
    try:
        read = render_prompt(prompt, how)
    except UserError as error:
        st.error(plain(str(error)))
        return
    shown = truncation.shortened(read, PREVIEW_CHARACTERS)
    spans = truncation.token_spans(shown.text, how.model)

    def as_seen() -> Passages | Text:
        return as_passage(prompt) if spans is None else tokens_as_text(shown.text, spans, shown.own)

    titled(Offer("The prompt, token by token", as_seen, READ, f"as {how.model} reads it"), "prompt-tokens")
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


def manner_further_down() -> ChatFormat:
    """How the prompt is put to the model, as the fields of the form that are drawn later say."""
    if (chat := str(further_down("chat", "auto"))) == "no":
        return ChatFormat(str(further_down("model", "mini")).strip(), "no")
    words = {"system": str(further_down("system", "")), "thinking": str(further_down("thinking", "template"))}
    return ChatFormat(str(further_down("model", "mini")).strip(), chat, **compare_form.request_fields(words))


def further_down(key: str, default: Any) -> Any:
    """The value of a widget that is drawn later: in the session, or in the address before the first time."""
    return st.session_state.get(key) or st.query_params.get(key) or default
