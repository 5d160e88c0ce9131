"""Needle autopsy: what became of chosen words in every layer and head, and what would be had they stayed."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.segmented import one_of
from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.tokentext import along_text, state_classes, tokentext
from app.figures.figure import show
from app.figures.tables import csv_button, show_table
from app.queue.submit import queued
from app.run_views import page, view
from app.run_views.require_level import full_run
from app.session.open_runs import wanted_of
from app.session.url_numbers import asked_numbers
from app.session.url_state import keep, let_go
from kvlab.analysis.attention import autopsy
from kvlab.analysis.comparison import board
from kvlab.analysis.comparison.facts import fact_positions
from kvlab.analysis.lineage import states_at
from kvlab.common.errors import UserError
from kvlab.figures import autopsy as figures
from kvlab.figures.base.palette import FATES
from kvlab.jobs.rerun_restored import counterfactual
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace.reader import Run

TEXT = "autopsy-text"
PLACE = "autopsy-place"


def main() -> None:
    page.heading(
        "Needle autopsy",
        "Choose words of the text, such as a needle: did their tokens keep slots of their own, live on in merged ones, "
        "or get dropped, in which head and at which step? Then put them back and run again.",
    )
    run = full_run("wrong", "the single events")
    if run is None:
        return
    view.at_place(run, partial(chosen_words, run), steps=False)


def chosen_words(run: Run, layer: int, head: int) -> None:
    span = choose(run, layer, head)
    if span is None:
        st.info("Write words above, or click a word of the text.", icon=":material/info:")
        offer_needle(run)
        return
    step, moment = moment_of(run)
    table = autopsy_of(run, *page.stamp(run), span, step)
    everywhere(run, table, moment)
    here(run, table, layer, head, moment)
    put_back(run, span)


def choose(run: Run, layer: int, head: int) -> tuple[int, int] | None:
    """The chosen tokens: words looked up in the text, or a span clicked in it."""
    lineage, _, texts = page.head_history(run, layer, head)
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    with left:
        words = st.text_input(
            "Words to look for",
            key="words",
            bind="query-params",
            on_change=forget_span,
            placeholder="such as a name, a number or a sentence of the prompt",
        )
    span, found = asked_span(lineage.tokens) or (fact_span(run) if not words.strip() else None), []
    if span is None and words.strip():
        try:
            found = autopsy.find_span(texts, words)
        except UserError as error:
            st.warning(plain(str(error)))
    if found:
        span = found[0]
    if words.strip() and span is not None:
        with right:
            pick_place(texts, words, span)
    step, moment = moment_of(run)
    codes = states_at(lineage, step)
    if span is not None and span == fact_span(run):
        st.caption("Opened with the fact that the answer needs; choose other words above, or click one of the text.")
    st.caption(f"In this head, {moment}")
    tokentext(
        texts,
        codes,
        state_classes(),
        identity=str(run.path),
        key=TEXT,
        chosen=span,
        on_chosen=remember_span,
        scroll=span[0] if span else None,
        title=f"{run.record.label}: what became of each token, {moment}",
        source=page.source(run),
    )
    return span


def moment_of(run: Run) -> tuple[int, str]:
    """The step after which fates are taken, and in words: that of Compare, or the last where no answer is known."""
    last, wanted = int(run.steps["step"].max()), wanted_of([run])
    asked = None if wanted is None else board.check_answer([run], wanted)
    if asked is None or asked.step > last:
        return last, f"at the end of the run (after step {last})"
    return asked.step, asked.moment


def fact_span(run: Run) -> tuple[int, int] | None:
    """The tokens of the fact behind the comparison's answer, where there is one."""
    wanted = wanted_of([run])
    try:
        found = fact_positions(run.tokens, run.record.prompt, wanted.facts[:1] if wanted else ())
    except UserError:
        return None
    return (int(found[0]), int(found[-1])) if len(found) else None


def offer_needle(run: Run) -> None:
    """Of a prompt that ships with kvlab and asks for something: a button that looks for what it asks for."""
    answers = [sample.answer for sample in shipped_samples() if sample.answer and sample.text == run.record.prompt]
    for answer in answers:
        st.button(
            f"Look for {plain(answer)}, which this prompt asks for",
            on_click=look_for,
            args=(answer,),
            key="needle-offer",
        )


def look_for(words: str) -> None:
    st.session_state["words"] = words
    forget_span()


def pick_place(texts: list[str], words: str, span: tuple[int, int]) -> None:
    """Every place where the words stand; choosing one puts its span into the address."""
    try:
        places = autopsy.find_span(texts, words)
    except UserError:
        return
    options = places if span in places else [span, *places]
    st.session_state[PLACE] = span
    st.selectbox("Place", options, key=PLACE, format_func=lambda place: name(place, texts), on_change=remember_place)


def remember_place() -> None:
    keep("span", "-".join(map(str, st.session_state[PLACE])))


def name(span: tuple[int, int], texts: list[str]) -> str:
    return f"tokens {span[0]} to {span[1]}: “{''.join(texts[span[0] : span[1] + 1]).strip()}”"


def asked_span(tokens: int) -> tuple[int, int] | None:
    """The span in the address, `first-last`, if the text has it."""
    edges = asked_numbers("span", 2)
    if edges is None:
        return None
    first, last = edges
    return (first, last) if first <= last < tokens else None


def remember_span() -> None:
    if (chosen := st.session_state[TEXT].get("chosen")) is not None:
        keep("span", "-".join(str(int(edge)) for edge in chosen))


def forget_span() -> None:
    let_go("span")


def everywhere(run: Run, table: pd.DataFrame, moment: str) -> None:
    st.subheader("In every head")
    survived, origin, theme = autopsy.survival(table), page.source(run), page_theme()
    left, right = st.columns(2, gap="large")
    with left:
        if st.session_state.get("fate") not in (None, *autopsy.FATES):  # a link of before, when kept was "own slot"
            st.session_state["fate"] = "kept"
        words = {fate: FATES[fate][0] for fate in autopsy.FATES}
        fate = one_of("Show the share", words, "dropped", key="fate")
        figure = figures.survival_by_head(survived, fate, theme)
        reading = figures.read_survival_by_head(survived, moment)
        show(figure, survived, reading, "autopsy-heads", page.file_name(run, "autopsy-heads"), origin)
    with right:
        steps = autopsy.fates_over_steps(table, int(run.steps["step"].max()))
        figure = along_text(figures.fates_over_steps(steps, theme), offset=run.record.prompt_tokens - 1)
        reading = figures.read_fates_over_steps(steps)
        show(figure, steps, reading, "autopsy-steps", page.file_name(run, "autopsy-steps"), origin)


def here(run: Run, table: pd.DataFrame, layer: int, head: int, moment: str) -> None:
    st.subheader(f"In layer {layer}, head {head}")
    texts = page.head_history(run, layer, head)[2]
    rows = autopsy.token_rows(table, texts, layer, head)
    st.caption(f"The fate is what it was {moment}; the other columns are of the whole run.")
    show_table(rows, "Fate of each chosen token", height=min(420, 38 + 35 * len(rows)))
    csv_button(rows, "autopsy")
    try:
        masses = autopsy.needle_mass(run, table, layer, head)
    except UserError as error:
        st.caption(plain(str(error)))
        return
    figure = along_text(figures.needle_mass(masses, page_theme()), offset=run.record.prompt_tokens - 1)
    file = page.file_name(run, f"needle-mass-layer-{layer}-head-{head}")
    show(figure, masses, figures.read_needle_mass(masses), "autopsy-mass", file, page.source(run))


def put_back(run: Run, span: tuple[int, int]) -> None:
    st.subheader("What if they had stayed?")
    count = span[1] - span[0] + 1
    st.markdown(
        f"Runs **{plain(run.record.label)}** again twice over the same prompt: as it was, and with the {count} chosen "
        "tokens kept in every head, in places of the budget. **Difference of two runs** then shows the change."
    )
    again = {"type": "primary", "icon": ":material/replay:", "key": "put-back"}
    if permission.button("Keep them and run again", permission.why_not(), **again):
        job = queued(lambda: counterfactual(run.record, *span))
        if job is not None:
            go("new_run", job=job)


@st.cache_data(max_entries=32, show_spinner=False)
def autopsy_of(_run: Run, path: str, written: int, span: tuple[int, int], step: int) -> pd.DataFrame:
    return autopsy.autopsy(_run, span, step)


main()
