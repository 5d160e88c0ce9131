"""The source of a new run's prompt: a sample, text, chat turns, files or saved prompts, with a preview of tokens."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from app.base.text import plain, shorten
from app.base.widgets import one_of
from app.new_run import prompt_library
from app.new_run.prompt_view import BOX_HEIGHT, preview, show_tokens, tokens_wanted
from app.session.url_state import get_param, in_url, params, set_param
from kvlab.core.errors import UserError
from kvlab.forms import uploads
from kvlab.models.info.token_count import check_prompt, check_upload_size
from kvlab.requests.compare import OnePrompt
from kvlab.requests.facts import check_answer, find_facts
from kvlab.requests.repeats import MOST_REPEATS
from kvlab.tasks.documents.document import LARGEST_BYTES
from kvlab.tasks.documents.read import check_size, is_document
from kvlab.tasks.prompt_table import join_texts
from kvlab.tasks.shipped_samples import shipped_samples

SOURCES = ("Sample", "Paste", "Chat", "Upload", "Saved")
NOTHING = OnePrompt(prompt="")
# of the table of prompts, pixels
TABLE_HEIGHT = 260
ROW_HEIGHT = 35
FEW_ROWS = 50
ALL_ROWS = "upload_many"  # whether all rows of a table are run
DRAFT = "draft"  # the parameter with the id of a pasted text


@dataclass(frozen=True)
class PromptChoice:
    """A prompt and its title; with several prompts, `prompt` is the longest.

    `has_answer`: answer and facts came with it, as for a saved prompt or a row.
    """

    prompt: OnePrompt = NOTHING
    title: str = ""
    several: tuple[OnePrompt, ...] = ()
    has_answer: bool = False


def prompt_section() -> PromptChoice:
    """The prompt from the chosen source, with a preview; empty if it cannot be used."""
    if prompt_library.NAME in params() and "source" not in params() and "source" not in st.session_state:
        st.session_state["source"] = "Saved"  # `?prompt=NAME` alone
    source = one_of("Source", SOURCES, "Sample", key="source", label_visibility="collapsed")
    try:
        if source == "Chat":
            one = prompt_library.chat_prompt()
            if one.prompt and tokens_wanted():
                show_tokens(one.prompt, one.turns)
            return PromptChoice(one)
        if source == "Saved":
            one, name = prompt_library.saved_prompt()
            if one.prompt:
                preview(one.prompt, one.turns, one.facts)
            return PromptChoice(one, name, has_answer=True)
        if source in ("Paste", "Upload"):
            return (pasted_prompt if source == "Paste" else uploaded_prompt)()
        # A prompt shipped with kvlab.
        by_title = {sample.title: sample for sample in shipped_samples()}
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            chosen = by_title[st.selectbox("Sample", list(by_title), **in_url("sample"), label_visibility="collapsed")]
            budget = f"{100 * chosen.suggested_budget:g}%"
            tokens = chosen.max_new_tokens
            st.button(
                f"Use {budget}, {tokens} new tokens",
                on_click=lambda: st.session_state.update(budgets=budget, max_new_tokens=tokens),
                key="suggest",
                help=f"Suggested for this sample: a budget of {budget} and {tokens} new tokens",
            )
        st.caption(f"{plain(chosen.description)} Look for: {plain(chosen.look_for)}")
        preview(chosen.text, facts=find_facts(chosen.text, chosen.facts))
        return PromptChoice(OnePrompt(prompt=chosen.text), chosen.title)
    except UserError as error:
        st.error(plain(str(error)))
        return PromptChoice()


def pasted_prompt() -> PromptChoice:
    """A typed or pasted text and a question after it. Raises UserError if they cannot be run."""
    if "pasted" not in st.session_state:
        # What the link stands for. A link of before, with the text itself, is opened and changed.
        found = prompt_library.opened_draft(DRAFT)
        typed = found if isinstance(found, dict) else {}
        if (old := get_param("text")) is not None:
            typed = {"text": old}
            set_param("text", None)
        st.session_state["pasted"] = str(typed.get("text", ""))
        st.session_state["pasted_question"] = str(typed.get("question", ""))
        if old:
            remember_pasted()
    text = st.text_area(
        "Text",
        key="pasted",
        height=BOX_HEIGHT,
        placeholder="Paste a prompt",
        persist_state="page",
        on_change=remember_pasted,
    )
    question = question_field("pasted_question", on_change=remember_pasted)
    whole = join_texts([text, question]) if text.strip() and question.strip() else text
    if text.strip():
        check_prompt(whole)
    prompt_library.show_draft_note()
    if text.strip() and tokens_wanted():
        show_tokens(whole)
    return PromptChoice(OnePrompt.model_construct(name="", prompt=whole, turns=(), answer=None, facts=()))


def question_field(key: str, **options: Any) -> str:
    """The question that follows a text or a document, if the user asks one."""
    return st.text_input(
        "Question (optional)",
        key=key,
        placeholder="Asked after the text",
        help="The prompt is the text, an empty line, and the question. Without one the text is continued",
        persist_state="page",
        **options,
    )


def remember_pasted() -> None:
    """Keep the text and its question as a draft, whose id is in the URL."""
    text = st.session_state["pasted"]
    question = st.session_state.get("pasted_question") or ""
    prompt_library.keep_draft(DRAFT, {"text": text, "question": question} if text.strip() else None)


def uploaded_prompt() -> PromptChoice:
    """The text of uploaded files, or the chosen rows of a table."""
    label = "Text, Markdown, PDF, DOCX, HTML or a notebook; or rows of JSON Lines, JSON, CSV or Parquet"
    files = st.file_uploader(
        label,
        help="One or several files. Each row of a table is a prompt or a conversation",
        key="upload",
        on_change=_lighter,
        type=list(uploads.TYPES),
        accept_multiple_files=True,
        max_upload_size=LARGEST_BYTES // 2**20,
    )
    found = [_read(file) for file in files or ()]
    if not found:
        return PromptChoice()
    table = found[0] if len(found) == 1 and found[0].rows else None
    field = ""
    rows = slice(None)
    if table is not None:
        left, right = st.columns([2, 1])
        with left:
            field = st.selectbox(
                "Prompt",
                ["", *table.fields],
                **in_url("upload_field"),
                format_func=lambda name: name or f"by column names: {table.usual}",
                help="By column names, a context is followed by its question. A column chosen here is the whole prompt",
            )
        if len(table.rows) > 1:
            with right:
                st.space("small")
                every = st.toggle(
                    f"All of {len(table.rows):,} rows",
                    "upload_row" not in params(),
                    **in_url(ALL_ROWS),
                    on_change=_lighter,
                    help="One comparison per row, one after another, and results over all of them with confidence "
                    "intervals",
                )
            if not every:
                count = len(table.rows)
                row = int(st.number_input(f"Row of {count:,}", 1, count, 1, **in_url("upload_row"))) - 1
                return _shown(table.one(row, field), f"{table.name}, row {row + 1}")
            rows = _rows(table)
    if any(not one.rows for one in found):
        question = question_field("upload_question")
        found = [one.ask(question) for one in found]
    chosen = uploads.prompts_of(found, field, rows)
    if len(chosen) == 1:
        return _shown(chosen[0], found[0].name)
    chosen = _chosen_rows(chosen)
    names = [f"{number} of {len(chosen)}: {prompt.name}" for number, prompt in enumerate(chosen, 1)]
    shown = st.selectbox("Preview", names, **in_url("upload_look"))
    at = names.index(shown) if shown in names else 0
    _show_notes(uploads.notes_of(chosen))
    preview(chosen[at].prompt, chosen[at].turns, chosen[at].facts)
    longest = max(chosen, key=lambda prompt: len(prompt.prompt))
    title = found[0].name if len(found) == 1 else f"{len(found)} files: {', '.join(one.name for one in found)}"
    return PromptChoice(longest, shorten(title, 90), tuple(chosen))


def _chosen_rows(found: Sequence[OnePrompt]) -> list[OnePrompt]:
    """The prompts that are ticked in a table, with their answers as edited there.

    Raises:
        UserError: none is ticked, or a typed answer cannot be searched for.
    """
    answers = [" or ".join(filter(None, (one.answer, *one.other_answers))) for one in found]
    lines = pd.DataFrame(
        {
            "run": True,
            "name": [one.name for one in found],
            "answer": answers,
            "prompt": [shorten(" ".join(one.prompt[:400].split()), 120) for one in found],
            "characters": [len(one.prompt) for one in found],
        },
        index=pd.RangeIndex(1, len(found) + 1),
    )
    key = hash(tuple(lines.itertuples()))  # edits apply to these prompts only
    edited = st.data_editor(
        lines,
        height=min(TABLE_HEIGHT, ROW_HEIGHT * (len(found) + 1) + 3),
        disabled=["name", "prompt", "characters"],
        column_config={
            "run": st.column_config.CheckboxColumn(help="Untick a row to leave it out", width="small"),
            "answer": st.column_config.TextColumn(help="The expected answer; edit it, or leave it empty"),
        },
        alt="One row per prompt: whether it is run, name, expected answer, beginning, and length",
        key=f"upload-answers-{key}",
    )
    typed = zip(found, answers, edited["answer"].fillna(""), edited["run"], strict=True)
    chosen = []
    for one, before, text, ticked in typed:
        if ticked and text == before:
            chosen.append(one)
        elif ticked:
            answer = check_answer(str(text)) if str(text).strip() else None
            chosen.append(one.model_copy(update={"answer": answer, "other_answers": ()}))
    if not chosen:
        raise UserError("No row is ticked: tick at least one in the column run.")
    return chosen


def _read(file: Any) -> uploads.Upload:
    # A file that is too large is refused before its content is taken.
    (check_size if is_document(file.name) else check_upload_size)(file.name, file.size)
    found = _uploaded(file.name, file.getvalue())
    if isinstance(found, str):
        raise UserError(found)
    return found


@st.cache_data(max_entries=64, show_spinner="Reading the file")
def _uploaded(name: str, content: bytes) -> uploads.Upload | str:
    """The content of the file, or the error; both are cached."""
    try:
        return uploads.read_upload(name, content)
    except UserError as error:
        return str(error)


def _lighter() -> None:
    """Callback: preselect level light for several prompts."""
    files = list(st.session_state.get("upload") or ())
    has_several = len(files) > 1
    if len(files) == 1 and st.session_state.get(ALL_ROWS, "upload_row" not in params()):
        with suppress(UserError):  # shown with the file
            has_several = len(_read(files[0]).rows) > 1
    if has_several:
        st.session_state["level"] = "light"


def _rows(table: uploads.Upload) -> slice:
    """The rows from one number to another; few are ticked one by one."""
    count = len(table.rows)
    if count <= FEW_ROWS and not {"upload_first", "upload_last"} & set(params()):
        return slice(None)
    left, right = st.columns(2)
    first = int(left.number_input("From row", 1, count, 1, **in_url("upload_first")))
    last = int(right.number_input("To row", 1, count, min(count, MOST_REPEATS), **in_url("upload_last")))
    if last < first:
        raise UserError(f"The last row is before the first: choose a last row of {first} or more.")
    return slice(first - 1, last)


def _shown(one: OnePrompt, title: str) -> PromptChoice:
    """The preview of a prompt, and notes on the parts of the file that were left out."""
    _show_notes(one.notes)
    preview(one.prompt, one.turns, one.facts)
    return PromptChoice(one, title, has_answer=one.answer is not None)


def _show_notes(notes: Sequence[str]) -> None:
    if notes:
        st.info(plain(" ".join(notes)), icon=":material/content_cut:")
