"""Restore the answer: the smallest sets of tokens, heads or merges whose restoration corrects a wrong run."""

from __future__ import annotations

import html

import pandas as pd
import streamlit as st

from app.base.links import link
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.compare import restore
from app.figures.export_menu import Offer, show_title
from app.figures.tables import csv_button, show_table
from app.navigation.selection import current_run, runs_root
from app.queue.submit import queue_and_open
from app.run_views import page
from app.session.url_state import get_param, params, set_param
from kvlab.common.answer_match import find_answer
from kvlab.common.thoughts import declared_tags, hide_thinking
from kvlab.core.errors import UserError
from kvlab.jobs.work import rerun_with_restored
from kvlab.report.views import Passages
from kvlab.trace.reader import Run
from kvlab.trace.restore_results import RestoreResult, SearchResult, load_result
from kvlab.views import restore as figures
from kvlab.views.frames import restore as analysis
from kvlab.views.frames.textdiff import Segment

STYLE = "white-space: pre-wrap; overflow-wrap: anywhere; max-height: 220px; overflow-y: auto"
COLUMNS = {"search": "restored", "slots": "extra slots", "mean_kl": "mean KL", "tried": "reruns", "outcome": "outcome"}


def main() -> None:
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
        restore.follow(job)
    if result is not None:
        show_result(run, result)
    elif "search" not in params():
        offer(run)


def offer(run: Run) -> None:
    """The estimated time of the search, and the button that starts it."""
    if run.record.method == "full":
        st.info("The full cache evicts nothing: choose a compressed run above.", icon=":material/info:")
        return
    record = run.record
    estimate = restore.estimate(run, restore.MOST_RERUNS)
    page.verdict(f"What {record.label} would have had to keep is not searched yet: it takes {estimate}.")
    restore.button(run, "ask-restore")
    texts = [("The full cache writes", record.forced_text), (f"{record.label} writes", record.free_text)]
    show_texts(run, "What was lost", "The full cache's text and that of this run.", texts, record.answer or "")


def show_result(run: Run, result: RestoreResult) -> None:
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
    theme = page_theme()
    with left:
        kl = analysis.kl_by_series(result, chosen)
        figure = figures.kl_before_after(kl, theme)
        page.show_figure(run, figure, kl, figures.caption_kl_before_after(kl), "restore-kl", "restore-kl")
    with right:
        looks = analysis.attention_by_series(result, chosen, run)
        if looks.empty or result.reader is None:
            st.caption(plain(figures.caption_attention_before_after(looks)))
        else:
            figure = figures.attention_before_after(looks, result.reader, theme)
            caption = figures.caption_attention_before_after(looks)
            page.show_figure(run, figure, looks, caption, "restore-looks", "restore-attention")
    everything(run, table)
    further(run, result, chosen)


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


def show_texts(run: Run, title: str, told: str, texts: list[tuple[str, str]], answer: str) -> None:
    """Texts side by side, each under its name and with the answer marked."""
    passages = tuple((name, (Segment("same", text),)) for name, text in texts)
    show_title(Offer(title, lambda: Passages(passages=passages), told, page.source(run)), "restore-texts")
    for column, (name, text) in zip(st.columns(2, gap="large"), texts, strict=False):
        with column, st.container(border=True):
            st.markdown(f"**{plain(name)}**")
            st.html(f'<div style="{STYLE}">{mark_answer(text, answer, run)}</div>')


def mark_answer(text: str, answer: str, run: Run) -> str:
    """The text as escaped HTML with the answer marked."""
    shown = text.strip() or "only white space"
    start, stop = find_answer(hide_thinking(shown, tags=declared_tags(run.record.chat)), answer) or (0, 0)
    before, found, after = (html.escape(part) for part in (shown[:start], shown[start:stop], shown[stop:]))
    mark = f'<mark style="background: rgba(0, 131, 95, 0.28); color: inherit">{found}</mark>' if found else ""
    return f"{before}{mark}{after}"


def everything(run: Run, table: pd.DataFrame) -> None:
    st.header("All searches")
    shown = table[list(COLUMNS)].rename(columns=COLUMNS)
    show_table(shown, "One row per search", height=38 + 35 * len(shown))
    csv_button(table, page.file_name(run, "restore"))


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
            link("autopsy", "These tokens in the autopsy", run=result.run_id, **place)
    with right:
        reruns = 2 * result.most_reruns if result.ending else result.most_reruns
        label = f"Search again, at most {reruns} reruns"
        again = st.button(label, icon=":material/refresh:", key="look-again")
        if again and (job_id := restore.queue_search(run, reruns)):
            set_param("search", job_id, force=True)
            st.rerun()


main()
