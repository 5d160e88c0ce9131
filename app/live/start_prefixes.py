"""The form of a live session over kept prefixes: texts that the model has read, and which prefixes of one are lanes."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from app.session.url_state import get_params, in_url, params
from kvlab.common.formatting import format_bytes, model_title
from kvlab.common.lab_file import lab
from kvlab.core.choice import FULL
from kvlab.library.prefixes import KeptText, PrefixFile, in_order, kept_texts, list_prefixes
from kvlab.requests.live_session import MOST_LANES

# URL parameters
TEXT = "kept"
LANES = "prefixes"
FIRST = 3  # prefixes that are chosen with a text


def text_section(model: str) -> KeptText | None:
    """Choose one of the texts that the model has read, with a table of its prefixes; None, with a sentence, without."""
    files, problems = list_prefixes(runs_root())
    texts = kept_texts(files, model)
    for problem in problems:
        st.caption(plain(f"Not listed: {problem}"))
    if not texts:
        st.info(plain(why_none(files, model)))
        return None
    known: dict[str, KeptText] = {}
    for text in texts:
        words = f"{text.header.title} ({text.header.tokens:,} tokens)"
        same = sum(name.startswith(words) for name in known)  # such as in another chat template
        known[f"{words}, {same + 1}" if same else words] = text
    _choose_from_url(known)
    chosen = known[st.selectbox("Text", list(known), 0, on_change=_choose_first, args=(known,), **in_url(TEXT))]
    rows = [
        {
            "name": file.name,
            "method": file.header.choice.method,
            "budget": file.header.choice.label.removeprefix(f"{file.header.choice.method} "),
            "tokens": f"{file.header.tokens:,}",
            "in memory": format_bytes(file.header.allocated_bytes),
            "on disk": format_bytes(file.bytes),
            "made": file.header.created[:16].replace("T", " "),
        }
        for file in chosen.files
    ]
    st.dataframe(rows, hide_index=True, alt="One row per prefix of this text")
    return chosen


def _choose_from_url(known: Mapping[str, KeptText]) -> None:
    """Make `?prefixes=NAME` alone choose the text that was kept under this name."""
    names = set(get_params(LANES))
    if names and TEXT not in params() and TEXT not in st.session_state:
        of_names = (key for key, text in known.items() if names & {file.name for file in text.files})
        st.session_state[TEXT] = next(of_names, next(iter(known)))


def _choose_first(known: Mapping[str, KeptText]) -> None:
    """Callback: another text has other prefixes."""
    st.session_state[LANES] = [file.name for file in known[st.session_state[TEXT]].files[:FIRST]]


def why_none(files: list[PrefixFile], model: str) -> str:
    """That no prefix can be opened, and how one is made: with a command, or on a shared server from a session."""
    known = sorted({model_title(file.header.model.name) for file in files} - {model_title(model)})
    others = f" There are some of {', '.join(known)}: type that model." if known else ""
    if lab() is not None:
        return f"You have no prefix of {model_title(model)}.{others} Read a context, and keep a lane as one."
    runs = f" --runs {runs_root()}" if str(runs_root()) != "runs" else ""
    command = f"kvlab prefix make NAME --file paper.pdf --model {model}{runs}"
    return f"No prefix of {model_title(model)} is kept here.{others} Make one: {command}"


def lanes_section(text: KeptText) -> tuple[PrefixFile, ...]:
    """Choose prefixes of the text, in the order of their lanes, with a sentence about what they are compared with."""
    files = {file.name: file for file in text.files}
    first = None if LANES in st.session_state else list(files)[:FIRST]
    names = st.multiselect("Lanes", list(files), first, wrap=True, max_selections=1 + MOST_LANES, **in_url(LANES))
    lanes = in_order(files[name] for name in names)
    if len(lanes) > 1:
        st.caption(plain(compared_with(lanes)))
    return lanes


def compared_with(lanes: tuple[PrefixFile, ...]) -> str:
    """Sentence that names the lane that answers are compared with."""
    if lanes[0].header.choice.method == FULL.method:
        return f"The first lane is the full cache, {lanes[0].name}: the others are compared with it."
    first = f"{lanes[0].name} ({lanes[0].header.choice.label})"
    return (
        f"No full cache is among them: the others are compared with the first, {first}. "
        "Make one with kvlab prefix make NAME --method full."
    )
