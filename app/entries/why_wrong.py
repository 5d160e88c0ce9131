"""Why wrong: the smallest sets of tokens, heads or merges whose restoration corrects a run, and the fate of a word."""

import html
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import streamlit as st

from app.base.component import on_value
from app.base.links import link
from app.base.text import plain
from app.base.widgets import one_of
from app.compare import restore
from app.components import state_classes, tokentext
from app.figures.export_menu import Offer, show_title
from app.figures.figure import frame_of, show_view
from app.figures.tables import csv_button, show_table
from app.navigation import page
from app.navigation.place import share_token, shared_token
from app.navigation.selection import current_run, runs_root
from app.queue.job_panel import queue_and_open
from app.session.open_runs import expected_answer, full_cache_of, shipped_answer
from app.session.url_state import clear_page_param, get_param, in_url, params, set_page_param, set_param, url_numbers
from kvlab.common.answer_match import find_answer
from kvlab.common.thoughts import declared_tags, hide_thinking
from kvlab.core.errors import UserError
from kvlab.jobs.work import counterfactual, rerun_with_restored
from kvlab.report.views import Passages
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import RestoreResult, SearchResult, load_result
from kvlab.views import autopsy as figures
from kvlab.views.base import FATES_WITH_UNREAD, of_run
from kvlab.views.frames import autopsy, board
from kvlab.views.frames import restore as analysis
from kvlab.views.frames.facts import fact_positions
from kvlab.views.frames.lineage import states_at
from kvlab.views.frames.textdiff import Segment

STYLE = "white-space: pre-wrap; overflow-wrap: anywhere; max-height: 220px; overflow-y: auto"
COLUMNS = {"search": "restored", "slots": "extra slots", "mean_kl": "mean KL", "tried": "reruns", "outcome": "outcome"}


def restore_page() -> None:
    page.heading(
        "Restore the answer",
        "Why did a run lose the answer? It is rerun many times from the same compressed prompt, each time with "
        "something restored: tokens, whole heads, or merges undone. This page shows the smallest set of each kind "
        "that restores the answer.",
    )
    run = current_run("wrong")
    if run is None:
        return
    try:
        result = load_result(runs_root(), run.record.comparison_id, run.record.run_id)
    except UserError as error:
        st.error(plain(str(error)))
        result = None
    if (job := get_param("search")) is not None:
        restore.show_search(job)
    if result is not None:
        page.verdict(analysis.sentence(result, run))
        if budget := analysis.budget_sentence(result):
            st.markdown(plain(budget))
        kind = "the expected answer" if result.expected else "the full cache's own text up to where this run diverges"
        criterion = f"Restored means that the run generates “{result.answer.strip()}”, {kind}."
        st.caption(plain(f"{criterion} {result.reruns} reruns. {result.ending}"))
        table = analysis.search_table(result)
        chosen = choose(result)
        # The texts before and after, side by side.
        texts = [("Before", result.text_before)]
        texts += [(chosen.returned.description, chosen.text)] if chosen is not None else []
        show_texts(run, "Before and after", analysis.sentence(result, run), texts, result.answer)
        left, right = st.columns(2, gap="large")
        place: dict[str, Any] = {"search": None if chosen is None else chosen.search, "result": result}
        with left:
            show_view("restored_kl", run, "restore-kl", **place)
        with right:
            show_view("restored_attention", run, "restore-looks", **place)
        st.header("All searches")
        shown = table[list(COLUMNS)].rename(columns=COLUMNS)
        show_table(shown, "One row per search", height=38 + 35 * len(shown))
        csv_button(table, f"{run.record.label}-restore")
        further(run, result, chosen)
    elif "search" not in params() and run.record.method == "full":
        st.info("The full cache evicts nothing: choose a compressed run above.", icon=":material/info:")
    elif "search" not in params():
        # The estimated time of the search, and the button that starts it.
        record = run.record
        estimate = restore.estimate(run)
        page.verdict(f"What {record.label} would have had to keep is not searched yet: it takes {estimate}.")
        restore.button(run, "ask-restore")
        texts = [("The full cache writes", record.forced_text), (f"{record.label} writes", record.free_text)]
        show_texts(run, "What was lost", "The full cache's text and that of this run.", texts, record.answer or "")


def choose(result: RestoreResult) -> SearchResult | None:
    """The search in the URL, else the cheapest that restores the answer."""
    if not result.found:
        return None
    best = analysis.cheapest(result) or result.found[0]
    searches = {
        found.search: f"{found.search}{'' if found.restores else ' (does not restore it)'}" for found in result.found
    }
    name = one_of("Restore", searches, best.search, key="given")
    found = next(found for found in result.found if found.search == name)
    search = analysis.SEARCHES.get(name, name).capitalize()
    st.caption(plain(f"{search}: {analysis.outcome(found)}, costing {analysis.slot_count_text(found.slots)}."))
    return found


def show_texts(run: Run, title: str, caption: str, texts: list[tuple[str, str]], answer: str) -> None:
    """Texts side by side, each under its name and with the answer marked."""
    passages = tuple((name, (Segment("same", text),)) for name, text in texts)
    show_title(Offer(title, lambda: Passages(passages=passages), caption, of_run(run)), "restore-texts")
    for column, (name, text) in zip(st.columns(2, gap="large"), texts, strict=False):
        with column, st.container(border=True):
            st.markdown(f"**{plain(name)}**")
            # The text as escaped HTML with the answer marked.
            shown = text.strip() or "only white space"
            start, stop = find_answer(hide_thinking(shown, tags=declared_tags(run.record.chat)), answer) or (0, 0)
            before, found, after = (html.escape(part) for part in (shown[:start], shown[start:stop], shown[stop:]))
            mark = f'<mark style="background: rgba(0, 131, 95, 0.28); color: inherit">{found}</mark>' if found else ""
            st.html(f'<div style="{STYLE}">{before}{mark}{after}</div>')


def further(run: Run, result: RestoreResult, chosen: SearchResult | None) -> None:
    """Buttons to record the result, to open its tokens in the autopsy, and to search again."""
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    with left:
        if chosen is not None and st.button("Record this run", icon=":material/replay:", key="record-restored"):
            queue_and_open("compare", lambda: rerun_with_restored(run.record, chosen.returned))
    with middle:
        tokens = chosen.returned.tokens if chosen is not None else ()
        if tokens and result.reader is not None:
            layer, head = result.reader
            place = {"span": f"{tokens[0]}-{tokens[-1]}", "layer": str(layer), "head": str(head)}
            link("autopsy", "Fate of these tokens", run=result.run_id, **place)
    with right:
        reruns = 2 * result.most_reruns if result.ending else result.most_reruns
        label = f"Search again, at most {reruns} reruns"
        again = st.button(label, icon=":material/refresh:", key="look-again")
        if again and (job_id := restore.queue_search(run, reruns)):
            set_param("search", job_id, force=True)
            st.rerun()


TEXT = "autopsy-text"
PLACE = "autopsy-place"


def autopsy_page() -> None:
    page.heading(
        "Fate of a word",
        "Choose words of the text, such as a needle, to see whether their tokens kept their own slots, were merged, "
        "or were dropped, in which head and at which step, and whether sparse attention left them out. Then restore "
        "them and run again.",
    )
    run = page.full_run("wrong", "single events")
    if run is None:
        return
    page.at_place(run, partial(chosen_words, run), steps=False)


def chosen_words(run: Run, layer: int, head: int) -> None:
    first_line = st.container()
    span = choose_words(run, layer, head)
    if span is None:
        st.info("Enter words above, or click a word of the text.", icon=":material/info:")
        if answer := shipped_answer(run.record.prompt):
            st.button(
                f"Find {plain(answer)}, the answer to this prompt",
                on_click=look_for,
                args=(answer,),
                key="needle-offer",
            )
        return
    step, moment = moment_of(run)
    try:
        reads = figures.unread_of_span(run, span) is not None  # which slots the run's sparse attention left out
    except UserError as error:
        st.warning(plain(str(error)))
        reads = False
    place: dict[str, Any] = {"span": span, "step": step, "reads": reads}
    with first_line:
        survived = frame_of("fate_by_head", run, **place)
        page.verdict(figures.verdict(survived, run.record.label, moment))
    st.header("In every head")
    fates = (*autopsy.FATES, autopsy.UNREAD) if reads else autopsy.FATES
    left, right = page.map_columns(run)
    with left:
        if st.session_state.get("fate") not in (None, *fates):  # an old link: "kept" was "own slot"
            st.session_state["fate"] = "kept"
        labels = {fate: FATES_WITH_UNREAD[fate][0] for fate in fates}
        fate = one_of("Show the share", labels, fates[-1], key="fate")
        show_view("fate_by_head", run, "autopsy-heads", fate=fate, moment=moment, focus=(layer, head), **place)
    with right:
        show_view("fate_over_steps", run, "autopsy-steps", span=span, reads=reads)
    st.header(f"In layer {layer}, head {head}")
    texts = page.head_history(run, layer, head)[2]
    rows = autopsy.token_rows(figures.fates_at(run, **place), texts, layer, head)
    st.caption(f"The fate is that {moment}; the other columns are for the whole run.")
    show_table(rows, "Fate of each chosen token", height=min(420, 38 + 35 * len(rows)))
    csv_button(rows, "autopsy")
    show_view("attention_to_span", run, "autopsy-mass", layer=layer, head=head, span=span, full=full_cache_of(run))
    st.header("What if they had been kept?")
    count = span[1] - span[0] + 1
    st.markdown(
        f"This runs **{plain(run.record.label)}** twice on the same prompt: as before, and with the {count} chosen "
        "tokens kept in every head within the budget. **Difference of two runs**, under Cache, then shows the change."
    )
    if st.button("Keep them and run again", type="primary", icon=":material/replay:", key="put-back"):
        queue_and_open("compare", lambda: counterfactual(run.record, *span))


def choose_words(run: Run, layer: int, head: int) -> tuple[int, int] | None:
    """The chosen tokens: words found in the text, or a span clicked in it."""
    lineage, _, texts = page.head_history(run, layer, head)
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    words = left.text_input(
        "Words to find",
        **in_url("words"),
        on_change=clear_page_param,
        args=("span",),
        placeholder="such as a name, a number or a sentence of the prompt",
    )
    # The span in the URL, `first-last`, if the text has it; else the token chosen on another page, or the fact.
    edges = url_numbers("span", 2)
    span = (edges[0], edges[1]) if edges is not None and edges[0] <= edges[1] < lineage.tokens else None
    if span is None and not words.strip():
        token = shared_token([run.record.comparison_id])
        span = fact_span(run) if token is None or token >= lineage.tokens else (token, token)
    elif span is None:
        try:
            span = next(iter(autopsy.find_span(texts, words)), None)
        except UserError as error:
            st.warning(plain(str(error)))
    if words.strip() and span is not None:
        # A picker of all places where the words occur.
        with right, suppress(UserError):
            places = autopsy.find_span(texts, words)
            options = places if span in places else [span, *places]
            st.session_state[PLACE] = span
            labels = {
                (first, last): f"tokens {first} to {last}: “{''.join(texts[first : last + 1]).strip()}”"
                for first, last in options
            }
            st.selectbox(
                "Place",
                options,
                key=PLACE,
                format_func=labels.__getitem__,
                on_change=lambda: set_page_param("span", "-".join(map(str, st.session_state[PLACE]))),
            )
    step, moment = moment_of(run)
    codes = states_at(lineage, step)
    if span is not None and span == fact_span(run):
        st.caption("Opened with the fact that the answer needs; enter other words above, or click a word of the text.")
    st.caption(f"In this head, {moment}")
    tokentext(
        texts,
        codes,
        state_classes(),
        identity=str(run.path),
        key=TEXT,
        chosen=span,
        on_chosen=partial(on_value, TEXT, "chosen", partial(remember_span, run.record.comparison_id)),
        scroll=span[0] if span else None,
        title=f"{run.record.label}: the fate of each token, {moment}",
        source=of_run(run),
    )
    return span


def moment_of(run: Run) -> tuple[int, str]:
    """The step after which fates are read, and in words: as on Result, or the last without an expected answer."""
    last = int(run.steps["step"].max())
    wanted = expected_answer([run])
    question = None if wanted is None else board.check_answer([run], wanted)
    if question is None or question.step > last:
        return last, f"at the end of the run (after step {last})"
    return question.step, question.moment


def fact_span(run: Run) -> tuple[int, int] | None:
    """The tokens of the fact behind the expected answer, if there is one."""
    wanted = expected_answer([run])
    try:
        positions = fact_positions(run.tokens, run.record.prompt, wanted.facts[:1] if wanted else ())
    except UserError:
        return None
    return (int(positions[0]), int(positions[-1])) if len(positions) else None


def look_for(words: str) -> None:
    st.session_state["words"] = words
    clear_page_param("span")


def remember_span(comparison: str, chosen: Sequence[float]) -> None:
    set_page_param("span", "-".join(str(int(edge)) for edge in chosen))
    share_token(comparison, int(chosen[0]))
