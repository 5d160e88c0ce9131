"""The form of a new live session: a context, a model, and the branches; or kept prefixes, which have all three."""

from collections.abc import Callable

import streamlit as st
from pydantic import ValidationError

from app.base.text import plain
from app.base.widgets import button_unless, one_of
from app.live.sessions import open_session
from app.navigation.selection import runs_root
from app.new_run.method_section import hyper_parameter_section, method_section
from app.new_run.model_section import download_buttons, propose_model
from app.new_run.prompt_library import saved_prompt
from app.session.url_state import get_params, in_url, params, set_param
from kvlab.common.formatting import format_bytes, model_title
from kvlab.common.lab import lab
from kvlab.core import FULL, MethodChoice, UserError, in_one_sentence
from kvlab.forms import compare_form
from kvlab.forms.uploads import TEXTS, read_upload
from kvlab.library.prefixes import KeptText, PrefixFile, in_order, kept_texts, list_prefixes, live_request
from kvlab.requests.live_session import MOST_BRANCHES, LiveRequest
from kvlab.tasks.shipped_samples import shipped_samples

# URL parameters
TEXT = "kept"
BRANCHES = "prefixes"
FIRST = 3  # prefixes that are chosen with a text


def text_section(model: str) -> KeptText | None:
    """Choose one of the texts that the model has read, with a table of its prefixes; None, with a sentence, without."""
    files, problems = list_prefixes(runs_root())
    texts = kept_texts(files, model)
    for problem in problems:
        st.caption(plain(f"Not listed: {problem}"))
    if not texts:
        # That no prefix can be opened, and how one is made: with a command, or on a shared server from a session.
        titles = sorted({model_title(file.header.model.name) for file in files} - {model_title(model)})
        others = f" There are some of {', '.join(titles)}: type that model." if titles else ""
        why = f"You have no prefix of {model_title(model)}.{others} Read a context, and keep a branch as one."
        if lab() is None:
            runs = f" --runs {runs_root()}" if str(runs_root()) != "runs" else ""
            command = f"kvlab prefix make NAME --file paper.pdf --model {model}{runs}"
            why = f"No prefix of {model_title(model)} is kept here.{others} Make one: {command}"
        st.info(plain(why))
        return None
    known: dict[str, KeptText] = {}
    for text in texts:
        words = f"{text.header.title} ({text.header.tokens:,} tokens)"
        same = sum(name.startswith(words) for name in known)  # such as in another chat template
        known[f"{words}, {same + 1}" if same else words] = text
    # Make `?prefixes=NAME` alone choose the text that was kept under this name.
    names = set(get_params(BRANCHES))
    if names and TEXT not in params() and TEXT not in st.session_state:
        of_names = (key for key, text in known.items() if names & {file.name for file in text.files})
        st.session_state[TEXT] = next(of_names, next(iter(known)))
    name = st.selectbox(
        "Text",
        list(known),
        0,
        on_change=lambda: st.session_state.update(
            {BRANCHES: [file.name for file in known[st.session_state[TEXT]].files[:FIRST]]}
        ),
        **in_url(TEXT),
    )
    chosen = known[name]
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
        # The form for kept prefixes; its button opens them as a session, in which nothing is read.
        with right:
            propose_model("model")
            model = st.text_input("Model", "mini", **in_url("model")).strip()
        with left:
            text = text_section(model)
        with right:
            # Prefixes of the text, in the order of their branches, with a sentence about what they are compared with.
            branches: tuple[PrefixFile, ...] = ()
            if text is not None:
                files = {file.name: file for file in text.files}
                default = None if BRANCHES in st.session_state else list(files)[:FIRST]
                most = 1 + MOST_BRANCHES
                names = st.multiselect(
                    "Branches", list(files), default, wrap=True, max_selections=most, **in_url(BRANCHES)
                )
                branches = in_order(files[name] for name in names)
            if len(branches) > 1:
                first = branches[0].header.choice
                if first.method == FULL.method:
                    words = f"The first branch is the full cache, {branches[0].name}: the others are compared with it."
                else:
                    words = (
                        "No full cache is among them: the others are compared with the first, "
                        f"{branches[0].name} ({first.label}). Make one with kvlab prefix make NAME --method full."
                    )
                st.caption(plain(words))
        why = "" if text else "There is no prefix to open."
        why = why or ("" if branches else "Choose at least one prefix.")
        if button_unless("Open the prefixes", why, type="primary", icon=":material/play_arrow:", key="live-start"):
            begin(lambda: live_request(runs_root(), [file.name for file in branches]))
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


def read_request(context: str, model: str, branches: tuple[MethodChoice, ...]) -> LiveRequest:
    """A session that reads a context. Raises UserError for too many branches."""
    if len(branches) > MOST:
        raise UserError(f"That would be {len(branches)} branches beside the full cache: choose at most {MOST}.")
    return LiveRequest(model=model, context=context, choices=branches)


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
        # The text of an uploaded document.
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
    if source == "Saved":
        return saved_prompt()[0].prompt
    samples = {sample.title: sample for sample in shipped_samples()}
    sample = samples[st.selectbox("Sample", list(samples), **in_url("sample"))]
    with st.container(height=280):
        st.text(sample.context)
    if sample.answer:
        st.caption(plain(f"{sample.description} Ask for it: the answer is {sample.answer}."))
    return sample.context
