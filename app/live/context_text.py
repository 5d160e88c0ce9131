"""The text of the context, each token shaded by the share of layers and heads that still hold it."""

import secrets
from functools import partial

import streamlit as st

from app.base.component import on_value
from app.base.text import plain, shorten
from app.base.theme import theme as page_theme
from app.base.widgets import button_unless, one_of, widget_options
from app.components import SentTexts, tokentext
from app.figures.figure import show
from app.live import sessions
from app.navigation.selection import runs_root
from app.session.url_state import chosen_value, drop_stale_option, params, set_param
from kvlab.core import FULL, UserError, quote_value, token_words
from kvlab.forms import compare_form
from kvlab.live.events import fork_log, heads_path
from kvlab.live.transcript import NAMES, Transcript, codes_of, merge_notes, what_is_left_sentence
from kvlab.planning.choices import methods
from kvlab.planning.parameters import DEFAULT, PRESET
from kvlab.report.views import Cue, TokenClass
from kvlab.requests.live_session import Edit, LiveRequest, edit_tokens, edit_words, without_edits
from kvlab.views import token_heads as figures
from kvlab.views.base.head_map import caption_focus
from kvlab.views.base.palette import SEQUENTIAL, STATE_COLOURS
from kvlab.views.frames.token_heads import TokenHeads, read_token_heads

NEW_TOKENS = 64
AS_NOW = "as now"


def sampling() -> dict[str, float]:
    """How tokens are chosen, as fields of a job."""
    return {
        "max_new_tokens": int(st.session_state.get("new_tokens", NEW_TOKENS)),
        "temperature": float(st.session_state.get("temperature", 0.0)),
        "seed": int(st.session_state.get("seed", 0)),
    }


def change_branch(session: str, request: LiveRequest, number: int, is_busy: bool) -> None:
    """A menu with the branch's method, settings and budget; its button compresses the context again in this branch."""
    choice = request.branches[number]
    key = f"live-branch-{number}"
    with st.popover("Change", **widget_options(request.why_fixed, key=key)):
        entries = {entry.name: entry for entry in methods() if entry.name != FULL.method}
        place = list(entries).index(choice.method) if choice.method in entries else 0
        entry = entries[st.selectbox("Method", list(entries), place, key=f"{key}-method")]
        presets = [AS_NOW] if entry.name == choice.method else []
        preset = st.selectbox("Settings", [*presets, DEFAULT, *entry.presets], key=f"{key}-settings")
        now = f"{100 * choice.budget:g}%" if isinstance(choice.budget, float) else quote_value(choice.budget)
        budget = st.text_input("Budget", now, key=f"{key}-budget", help="Such as 20%, 128 or 20%B")
        st.caption("Only this branch is compressed again; then all branches answer the questions again.")
        why = request.why_fixed or ("An answer is being written." if is_busy else "")
        if button_unless("Change the branch", why, key=f"{key}-apply"):
            settings = {AS_NOW: choice.hyper_parameters, DEFAULT: {}}.get(preset, {PRESET: preset})
            try:
                (changed,) = compare_form.choices(
                    [entry], compare_form.parse_budgets(budget)[:1], {entry.name: settings}
                )
            except UserError as error:
                st.error(plain(str(error)))
                return
            if sessions.act(session, request, "branch", branch=number, choice=changed, **sampling()):
                st.rerun()


def change_question(session: str, request: LiveRequest, turn: int, question: str) -> None:
    """Beside a question: ask another in its place, or go on from before it in a new session."""
    key = f"live-turn-{turn}"
    with st.popover("Edit", key=key, help="Another question in place of this one; later ones are dropped"):
        edited = st.text_area("Question", question, key=f"{key}-text")
        why = "" if edited.strip() else "Type a question."
        if button_unless("Ask this instead", why, key=f"{key}-ask") and sessions.act(
            session, request, "again", question=edited, turn=turn, **sampling()
        ):
            st.rerun()
    help_text = "A new session with what was said before this question; this one stays"
    if st.button("Fork", help=help_text, key=f"{key}-fork"):
        other = secrets.token_hex(8)  # in which nothing is read until its first question
        fork_log(runs_root(), session, other, turn, sessions.opened_event(request))
        set_param("session", other)
        st.rerun()


ALL = "all"
ONE = "one"
FOCUS = "focus"
# Button, icon, what it does.
BUTTONS: dict[Edit, tuple[str, str, str]] = {
    "keep": ("Keep", "keep", "The words keep slots of their own."),
    "drop": ("Drop", "delete", "The words are evicted; others take their slots."),
    "merge": (
        "Merge",
        "merge",
        "The words are evicted by the method's own merging rule, which may find no slot alike enough. A method that "
        "evicts tokens merges them into the slot with the most similar key, by the mean of keys and values. Others "
        "take their slots.",
    ),
}


def word_edits(
    session: str,
    request: LiveRequest,
    branch: int,
    words: tuple[int, int],
    label: str,
    heads: TokenHeads | None,
    is_busy: bool,
) -> None:
    """Buttons that keep, drop or merge the tokens `words` (first and last), named `label`, in one branch.

    `heads` are the branch's heads, if they were read.
    """
    choice = request.branches[branch]
    changed = None
    why = request.why_fixed or ("An answer is being written." if is_busy else "")
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="live-word-edits"):
        st.markdown(plain(label), width="content")
        # The head (layer, head) in which an edit is made; None for all.
        head = None
        if heads is not None and words[1] < heads.attention.shape[2]:
            most = heads.most_attentive(words[1])
            focus = sessions.head_in_focus(heads, words[1])
            options = {ALL: "in all heads", ONE: f"in layer {most[0]}, head {most[1]}, which reads it most"}
            if focus is not None and focus != most:
                options[FOCUS] = f"in layer {focus[0]}, head {focus[1]}, in view"
            drop_stale_option("edit_in", list(options))
            where = one_of("Where", options, key="edit_in", label_visibility="collapsed")
            head = {ONE: most, FOCUS: focus}.get(where)
        for edit, (name, icon, text) in BUTTONS.items():
            if button_unless(name, why, icon=f":material/{icon}:", help=text, key=f"live-{edit}"):
                try:
                    changed = edit_tokens(choice, edit, range(words[0], words[1] + 1), head)
                except UserError as error:
                    st.error(plain(str(error)))
        nothing = "" if edit_words(choice) else "Nothing was edited in this branch."
        if button_unless("Undo edits", why or nothing, icon=":material/undo:", key="live-undo"):
            changed = without_edits(choice)
    note = (
        request.why_fixed or "Only this branch is compressed again, within its budget, and answers the questions again."
    )
    st.caption(plain(f"Edits of this branch: {edit_words(choice)}.") if edit_words(choice) else note)
    if changed is not None and sessions.act(session, request, "branch", branch=branch, choice=changed, **sampling()):
        st.rerun()


def known_heads(session: str, transcript: Transcript, branch: int) -> TokenHeads | None:
    """The heads of a branch as they were read after its last answer; None if they were not."""
    turn = len(transcript.turns)
    if transcript.heads_read.get(branch) != turn:
        return None
    heads = read_token_heads(heads_path(runs_root(), session, branch))
    return heads if heads is not None and heads.turn == turn else None


def word_heads(
    session: str, request: LiveRequest, transcript: Transcript, branch: int, heads: TokenHeads | None, is_busy: bool
) -> None:
    """Draw the edits of the chosen words, and maps of all heads for the last of them; nothing without a choice.

    `heads` are the branch's, if they were read. The worker reads them on request.
    """
    words = sessions.chosen_words(transcript)
    if words is None:
        return
    word = words[1]
    text = "".join(transcript.texts[words[0] : word + 1]).strip()
    label = f"“{shorten(text, 24)}” ({token_words(range(words[0], word + 1))})"
    heads = heads if heads is not None and word < heads.states.shape[2] else None
    word_edits(session, request, branch, words, label, heads, is_busy)
    if heads is None:
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            why = "An answer is being written." if is_busy else ""
            if button_unless("Read the heads", why, key="live-heads") and sessions.act(
                session, request, "heads", branch=branch
            ):
                st.rerun()
            st.caption("Shows which heads hold it. The last answer is read once more, which takes as long.")
        return
    table = heads.of_token(word)
    name = f"live-word-{word}"
    theme = page_theme()
    focus = sessions.head_in_focus(heads, word)
    source = f"{transcript.branches[branch].label}, after {heads.turn} questions"
    left, right = st.columns(2)
    with left:
        holding = figures.heads_that_hold(table, label, theme, focus)
        caption = caption_focus(figures.caption_heads_that_hold(table), holding, focus)
        show(holding, table, caption, "live-heads-hold", name, source)
    with right:
        attention = figures.attention_to_token(table, label, theme, focus)
        caption = caption_focus(figures.caption_attention_to_token(table), attention, focus)
        show(attention, table, caption, "live-heads-attend", f"{name}-attention", source)


SENT = "live-sent-texts"
TEXT = "live-canvas"  # key of the text in which words are chosen
CUES: tuple[Cue, ...] = ("strike", "dashed", "faint", "fill", "fill", "fill", "fill")


def what_is_left(session: str, request: LiveRequest, transcript: Transcript, is_busy: bool) -> None:
    """The context, each token shaded by the share of all layers and heads that hold it in a slot of its own."""
    numbers = [number for number in sorted(transcript.branches) if number or not request.has_full_cache]
    known = {number: branch for number in numbers if (branch := transcript.branches[number]).held is not None}
    if not known or not transcript.texts:
        return
    st.header("What is left of the text")
    labels = {str(number): branch.label for number, branch in known.items()}
    # Begin with the branch whose run was chosen on another page.
    run = chosen_value("run")
    follows = next((branch for branch, recorded in transcript.runs.items() if recorded == run), None)
    if follows is not None and sessions.BRANCH not in params() and sessions.BRANCH not in st.session_state:
        st.session_state[sessions.BRANCH] = str(follows)
    # A link of before names the branch by its label.
    named = {label: number for number, label in labels.items()}
    if (label := st.session_state.get(sessions.BRANCH)) in named:
        st.session_state[sessions.BRANCH] = named[label]
    drop_stale_option(sessions.BRANCH, list(labels))
    number = int(one_of("Branch", labels, key=sessions.BRANCH, on_change=partial(sessions.share_branch, transcript)))
    chosen = known[number]
    words = sessions.chosen_words(transcript)
    # Looks of the classes of `NAMES`, from dropped everywhere to held everywhere.
    light, dark = (SEQUENTIAL[theme] for theme in ("light", "dark"))
    colours = [STATE_COLOURS["evicted"], STATE_COLOURS["absorbed"], *zip(light[1:], dark[1:], strict=True)]
    # The texts as sent to the browser, which are hashed once for a session.
    sent: tuple[list[str], SentTexts] | None = st.session_state.get(SENT)
    if sent is None or sent[0] is not transcript.texts:
        sent = st.session_state[SENT] = transcript.texts, SentTexts(transcript.texts)
    tokentext(
        sent[1],
        codes_of(chosen),
        tuple(
            TokenClass(name=name, colour=colour, cue=cue)
            for name, colour, cue in zip(NAMES, colours, CUES, strict=True)
        ),
        identity=f"{session}/{chosen.label}",
        key=TEXT,
        notes=merge_notes(chosen, transcript.texts),
        chosen=words,
        on_chosen=partial(
            on_value, TEXT, "chosen", lambda edges: sessions.choose_words(transcript, int(edges[0]), int(edges[1]))
        ),
        title=f"{chosen.label}: share of layers and heads that hold each token",
        has_menu=not is_busy,
    )
    unknown = " What was merged when the prefix was made is not in its file." if request.prefixes else ""
    st.caption(plain(what_is_left_sentence(chosen) + unknown))
    heads = known_heads(session, transcript, number)
    word_heads(session, request, transcript, number, heads, is_busy)
    if not is_busy:
        sessions.recorded_links(transcript, number, words, sessions.head_in_focus(heads, words and words[1]))
