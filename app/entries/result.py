"""Result: several methods and budgets over one prompt, side by side. `?job=` follows a running comparison."""

import html
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.base.component import after_first_chart
from app.base.links import link
from app.base.text import plain
from app.base.widgets import one_of
from app.compare.board import answer_form, board_of, board_section, budget_slider, first_screen, home_view
from app.compare.repeats import batch_of, batch_section
from app.figures.export_menu import Offer, explain_formats, file_button, show_title
from app.figures.figure import frame_of, page_file, show_view
from app.figures.image_writer import image_writer
from app.figures.tables import csv_button
from app.navigation import page
from app.navigation.selection import current_comparison
from app.queue.job_panel import show_job
from app.session.open_runs import runs_root
from app.session.url_state import get_param
from kvlab.common.formatting import ONE_PROMPT
from kvlab.report.contents import report, text_table
from kvlab.report.export import FORMATS, render_report
from kvlab.report.views import Passages, table_of
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import load_labels
from kvlab.views import compare as figures
from kvlab.views.base import byte_size, number, of_comparison, percent
from kvlab.views.board import excess_text, verdict_text
from kvlab.views.frames import compare
from kvlab.views.frames.board import places, rank_runs, runs_at
from kvlab.views.frames.labels import differing_settings
from kvlab.views.frames.speed import limit_text, ratio_text
from kvlab.views.frames.textdiff import diff
from kvlab.views.frames.trade_off import run_points

LABELS = {"html": "HTML, one file", "pptx": "Slides (PPTX)", "pdf": "PDF"}


def _report(runs: Sequence[Run], kind: str) -> bytes:
    labels = load_labels(runs_root(), runs[0].record.comparison_id)
    return render_report(report(runs, labels), kind, image_writer())


MARKS = {"same": "{}", "own": '<ins class="kv-own">{}</ins>', "missing": '<del class="kv-missing">{}</del>'}
NUMBER = partial(st.column_config.NumberColumn, width="small")
AGAINST = "x kvlab full"
LIMIT = "limit by bytes"
MOST_ROWS = 24  # of a table that is shown whole
COLUMNS = {
    "answer": st.column_config.TextColumn(
        width="medium", help="Whether its own text contains the answer, or its first wrong token."
    ),
    "live KiB": NUMBER(format="localized", help="Valid slots with their metadata, of all layers, after the last step."),
    "over budget": st.column_config.TextColumn(
        width=100, help="Live bytes above the budget: slot metadata, and generated tokens beyond it."
    ),
    "of full": NUMBER(
        format="%.0f %%", help="Live bytes relative to the full cache's run (computed if there is none)."
    ),
    "read KiB": NUMBER(format="localized", help="Bytes that a decode step reads, index included; mean over the steps."),
    "not read": NUMBER(
        format="%.1f %%",
        help="Attention, with nothing dropped, on slots held but not read; mean over steps, layers and heads.",
    ),
    "allocated": NUMBER(format="%.0f %%", help="Bytes of the tensors, relative to the full cache's run."),
    "tokens/s": st.column_config.TextColumn(
        help="Without recording: median and range of the readings; a dash, with the reason, for a single reading or "
        "widely spread ones. Captured: steps replayed as a CUDA graph; eager: launched one by one."
    ),
    AGAINST: st.column_config.TextColumn(
        help="Speed relative to this comparison's run of kvlab's full cache, if both were measured in the same way. "
        "The page Speed also measures transformers' full cache, which may be faster. A single reading, or widely "
        "spread ones, give no ratio."
    ),
    LIMIT: st.column_config.TextColumn(
        help="The most that the speed can be times the full cache's: a step moves the weights and what it reads of the "
        "cache once, (W + C) / (W + bC)."
    ),
    "of limit": st.column_config.TextColumn(help="Share of that limit which the measured ratio reaches."),
    "mean KL": NUMBER(
        format="%.3g",
        help="Nats per token from the full cache, mean over its continuation of this prompt; less is closer.",
    ),
    "agrees": NUMBER(format="%.0f %%", help="How often both caches predict the same next token (top-1 agreement)."),
    "prompt s": NUMBER(format="%.2g", help="Seconds to read and compress the prompt, including a second reading."),
    "second pass s": st.column_config.TextColumn(
        help="Part of the prompt's seconds for reading the context a second time."
    ),
    "own text": st.column_config.TextColumn(help="Where its own continuation first differs from the full cache's."),
}
SPEED = ("tokens/s", AGAINST, LIMIT, "of limit", "prompt s", "second pass s")  # columns of the table of speeds
SPEED_ROW = "One row per run; speed without recording, and the most that its bytes allow."
ONE_ROW = "One row per run; KL in nats per token from the full cache, mean over its continuation of this prompt."
MARKED = (
    "Each method's own greedy continuation. Text that only this method generated is orange, text that only the full "
    "cache generated is struck out."
)
STYLE = """<style>
.kv-text { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6; max-height: 340px; overflow-y: auto; }
.kv-own { background: rgba(200, 80, 10, 0.22); text-decoration: none; border-bottom: 2px solid rgb(200, 80, 10); }
.kv-missing { opacity: 0.68; }
</style>"""


def compare_page() -> None:
    page.heading(
        "Result",
        "What each method answers, and at how many bytes. **KL** is the distance from the full cache's probabilities "
        "over its own continuation.",
    )
    if job := get_param("job"):
        show_job(job)
        link("new_run", "Set up another run", icon=":material/add:")
        return
    runs = current_comparison()
    if not runs:
        return
    if owner := runs[0].record.owner:
        st.caption(f"Requested by **{plain(owner)}**{', private' if runs[0].record.private else ''}.")
    record = runs[0].record
    batch = batch_of(runs[0].record)
    budget = None
    if batch is not None and record.repeat is not None:
        budget = batch_section(runs, record.repeat, batch)
    board = board_of(runs)
    table = compare.headline(runs) if board is None else board.table
    points = run_points(table, places(runs))
    all_runs = of_comparison(runs)
    shows_trade_off = budget is None
    if budget is None:
        budget = budget_slider(points)
    if budget:
        runs = runs_at(runs, budget)
        names = dict(zip((run.record.run_id for run in runs), compare.unique_labels(runs), strict=True))
        table = compare.rename_runs(table, names)
        board = board and replace(board, table=table, frame=compare.rename_runs(board.frame, names))
    drawn = first_screen(runs, board) if board is not None else False
    if shows_trade_off:
        drawn |= home_view(points, budget, all_runs)
    if board is not None:
        drawn |= board_section(runs, board)
    answer_form(runs, board)
    # What differs between the runs, besides method and budget.
    settings = differing_settings([run.record for run in runs])
    further = settings.drop(index=["method", "budget"], errors="ignore")
    if len(further):
        with st.expander(
            f"What differs between these runs: {plain(', '.join(further.index))}", expanded=len(further) <= 6
        ):
            build = partial(table_of, settings.rename_axis("setting").reset_index())
            show_title(Offer("Settings that differ", build, source=of_comparison(runs)), "compare-settings")
            st.dataframe(settings, alt="One row per setting, one column per run")
    headline(runs, table, figures.caption_beyond_budget(compare.beyond_budget(runs)))
    sections = [partial(bytes_of, runs)]
    if compare.has_kl(compare.along_text(runs)):
        beside = partial(along_the_text, runs, "", "agreement_along_text", "nll_along_text")
        sections = [partial(along_the_text, runs, "Along the text", "kl_along_text"), beside, *sections]
    else:
        words = "These runs have no KL from the full cache: it requires a finished forced continuation."
        st.info(words, icon=":material/info:")
    while sections and not drawn:
        drawn = sections.pop(0)()
    if drawn:
        after_first_chart(f"compare-{record.comparison_id}", the_rest, runs, table, sections)
    else:
        the_rest(runs, table, [])


def the_rest(runs: Sequence[Run], table: pd.DataFrame, sections: Sequence[Callable[[], bool]]) -> None:
    """Everything below the first chart."""
    for section in sections:
        section()
    texts(runs, table)
    labels = ", ".join(f"{run.record.label} ({run.record.run_id})" for run in runs)
    versions = ", ".join(f"{name} {version}" for name, version in runs[0].record.versions.items())
    page_file(f"Comparison {runs[0].record.comparison_id}", f"{of_comparison(runs)}: {labels}; {versions}.")
    # A report in each format; a file is created on download.
    if not any(run.record.method != "full" for run in runs):
        return
    with st.popover("Report of this comparison", icon=":material/summarize:", key="report"):
        st.caption("Question, answers, table, key figures, texts, and caveats.")
        for kind, media in FORMATS.items():
            name = f"{runs[0].record.comparison_id}.{kind}"
            file_button(LABELS[kind], kind, partial(_report, runs, kind), name, media, "report", width="stretch")
        explain_formats()


def headline(runs: Sequence[Run], table: pd.DataFrame, beyond: str) -> None:
    ranking, left_out = rank_runs(table)
    st.header("Ranking")
    page.warn_of_reference(runs)
    if ranking:
        tokens = max(group["mean_tokens"].max() for _, groups in ranking for group in groups)
        mean = f"{ONE_PROMPT}; mean KL over {tokens} tokens of its continuation, nats per token"
        by_answer = "By the answer, then closest" if "verdict" in table else "Closest"
        # One line per kind of answer or, without answers, one per group of equal bytes.
        lines = []
        for kind, groups in ranking:
            ranks = []
            for group in groups:
                closest = ", ".join(f"**{plain(row.label)}** {number(row.mean_kl)}" for row in group.itertuples())
                ranks.append(f"about {byte_size(group['live_bytes'].median())}: {closest}")
            lines += [f"- **{kind}**, {'; '.join(ranks)}"] if kind else [f"- {rank}" for rank in ranks]
        st.markdown("\n".join([f"{by_answer} to the full cache first, at equal live bytes ({mean}):", "", *lines]))
    if left_out:
        reasons = "; ".join(f"**{plain(label)}**: {reason}" for label, reason in left_out)
        st.caption(f"Not ranked: {reasons}.")
    # Speeds have a table of their own: with them, the last columns are cut in a window of 1,440 pixels.
    shown = readable(table)
    speed = shown[["method", *(name for name in SPEED if name in shown)]]
    height: Any = "content" if len(table) <= MOST_ROWS else "auto"
    origin = of_comparison(runs)
    show_title(Offer("The runs in numbers", lambda: table_of(text_table(table)), ONE_ROW, origin), "compare-table")
    answers = shown.drop(columns=[*SPEED], errors="ignore")
    alt = "One row per run: answer, closeness, bytes"
    st.dataframe(answers, hide_index=True, column_config=COLUMNS, alt=alt, height=height)
    if beyond:
        st.caption(plain(beyond))
    csv_button(table, "comparison")
    show_title(Offer("Speed of the runs", lambda: table_of(speed), SPEED_ROW, origin), "compare-speed")
    alt = "One row per run: speed, its limit, seconds of the prompt"
    st.dataframe(speed, hide_index=True, column_config=COLUMNS, alt=alt, height=height)
    # Each note once, preceded by its runs if it does not apply to all.
    runs_of: dict[str, list[str]] = {}
    for run, name in zip(runs, compare.unique_labels(runs), strict=True):
        for note in run.record.remarks:
            runs_of.setdefault(note, []).append(name)
    for note, names in runs_of.items():
        whose = "" if len(names) == len(runs) else f"**{plain(', '.join(names))}**: "
        st.caption(f"{whose}{plain(note)}")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table with readable units, the most important columns first, as a narrow page cuts the last."""
    columns = {
        "method": table["label"],
        "answer": [verdict_text(row) for row in table.itertuples()] if "verdict" in table else None,
        "mean KL": table["mean_kl"].astype(float),
        "agrees": 100 * table["top1_agreement"].astype(float),
        # A verdict says more than where the texts diverge.
        "own text": None if "verdict" in table else [difference(row) for row in table.itertuples()],
        "live KiB": (table["live_bytes"].astype(float) / 1024).round(),
        "of full": 100 * table["live_ratio"].astype(float),
        "read KiB": (table["bytes_read"].astype(float) / 1024).round() if table["reading"].ne("").any() else None,
        "not read": 100 * unread if (unread := table["unread_mass"].astype(float)).notna().any() else None,
        "over budget": ["–" if pd.isna(share) else excess_text(share) for share in beyond]
        if (beyond := table["over_budget"].astype(float)).notna().any()
        else None,
        "tokens/s": table["speed"],
        AGAINST: [ratio_text(row.speed_ratio, row.speed_ratio_doubt) for row in table.itertuples()],
        LIMIT: [limit_text(limit) for limit in table["speed_limit"].astype(float).where(table["method"] != "full")],
        "of limit": [percent(share) if pd.notna(share) else "–" for share in table["limit_reached"]],
        "prompt s": table["prompt_seconds"].astype(float),
        "second pass s": [number(seconds, 2) if pd.notna(seconds) else "–" for seconds in again]
        if (again := table["second_pass_seconds"]).notna().any()
        else None,
        "allocated": 100 * table["allocated_ratio"].astype(float),
        "status": None if (table["status"] == "complete").all() else table["status"],
    }
    return pd.DataFrame({name: values for name, values in columns.items() if values is not None}, index=table.index)


def along_the_text(runs: Sequence[Run], title: str, *names: str) -> bool:
    """Views side by side, under a title if there is one; whether one of them was drawn."""
    if title:
        st.header(title)
    columns = st.columns(len(names), gap="large") if len(names) > 1 else [st.container()]
    drawn = False
    for column, name in zip(columns, names, strict=True):
        with column:
            drawn |= show_view(name, runs, f"compare-{name.partition('_')[0]}") is not None
    return drawn


def bytes_of(runs: Sequence[Run]) -> bool:
    if all(run.memory.empty for run in runs):
        st.info("These runs recorded no memory: record them at level light or full.", icon=":material/info:")
        return False
    st.header("Bytes")
    left, right = st.columns(2, gap="large")
    with left:
        measures = {"live_bytes": "live", "allocated_bytes": "allocated", "peak_bytes": "peak"}
        measure = one_of("Bytes", measures, key="bytes", label_visibility="collapsed")
        memory = frame_of("memory_by_run", runs)
        if memory[measure].isna().all():
            st.info(plain(figures.caption_memory_over_steps(memory, measure)), icon=":material/info:")
            drawn = None
        else:
            drawn = show_view("memory_by_run", runs, "compare-memory", measure=measure)
    with right:
        return show_view("slots_by_layer", runs, "compare-slots") is not None or drawn is not None


def texts(runs: Sequence[Run], table: pd.DataFrame) -> None:
    st.header("Generated texts")
    full = next((run.record.forced_text for run in runs if run.record.forced_text), "")
    if not any(run.record.free_text for run in runs):
        st.caption("No run has generated its own continuation yet.")
        return
    st.caption(MARKED)
    written = [(run, label) for run, label in zip(runs, table["label"], strict=True) if run.record.free_text]
    offer = Offer(
        "The text of each run",
        lambda: Passages(passages=tuple((label, tuple(diff(run.record.free_text, full))) for run, label in written)),
        MARKED,
        of_comparison(runs),
    )
    show_title(offer, "compare-texts")
    st.html(STYLE)
    columns = st.columns(2, gap="large")
    for place, (run, row) in enumerate(zip(runs, table.itertuples(), strict=True)):
        with columns[place % 2], st.container(border=True, key=f"compare-text-{place}"):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.markdown(f"**{plain(row.label)}** · {difference(row)}", width="stretch")
                if row.method != "full" and run.record.level == "full":
                    link("autopsy", "Fate of a word", run=run.record.run_id)
            if run.record.free_text.strip():
                segments = diff(run.record.free_text, full)
                marked = "".join(MARKS[segment.kind].format(html.escape(segment.text)) for segment in segments)
                st.html(f'<div class="kv-text">{marked}</div>')
            else:
                length = len(run.record.free_text)
                st.caption(f"Only white space ({length} characters)." if length else "No text was generated.")


def difference(row: Any) -> str:
    """Where a run's own text diverges from the full cache's."""
    if row.method == "full":
        return "the reference"
    if row.status != "complete" and pd.isna(row.first_divergence):
        return "not finished"
    return "the same" if pd.isna(row.first_divergence) else f"differs from token {int(row.first_divergence)}"
