"""Home: what kvlab is, the sample prompt in one click, recent comparisons, and the table of all results."""

from contextlib import suppress
from dataclasses import replace

import streamlit as st

from app.base.links import go, link
from app.base.text import ago, plain, shorten
from app.base.theme import theme
from app.navigation import page
from app.navigation.selection import runs_root, session_id
from app.queue.job_panel import badge
from app.runs import actions, begin_reading, bin_and_import, filters, runs_table, shelf
from kvlab import jobs
from kvlab.common.formatting import model_title, prompts
from kvlab.core.errors import UserError
from kvlab.forms.compare_form import sample_request
from kvlab.trace.catalogue import ComparisonEntry, by_batch, list_comparisons, rebuild, worst_status
from kvlab.views.base.palette import HUES, STATE_COLOURS, Theme

CELL = 58
GAP = 6
HEIGHT = 42
TOKENS = ("The", "old", "key", "lies", "under", "the", "stone")
FATES = ("kept", "merged", "merged", "evicted", "kept", "evicted", "kept")
SLOTS = ((0,), (1, 2), (4,), (6,))  # tokens of each slot
WIDTH = len(TOKENS) * (CELL + GAP) - GAP


def drawing(theme: Theme) -> str:
    """The SVG: a row of tokens above the row of slots."""
    side = 0 if theme == "light" else 1
    quiet = HUES["grey"][side]
    on_fill = "#FFFFFF" if theme == "light" else "#12151C"
    kept = STATE_COLOURS["kept"][side]
    merged = STATE_COLOURS["pivot"][side]
    tokens = []
    centres = []
    for index, (text, fate) in enumerate(zip(TOKENS, FATES, strict=True)):
        x = 1 + index * (CELL + GAP)
        centres.append(x + CELL / 2)
        fill = {"kept": kept, "merged": merged, "evicted": "none"}[fate]
        dash = ' stroke-dasharray="3 3"' if fate == "evicted" else ""
        stroke, ink = (quiet, quiet) if fate == "evicted" else (fill, on_fill)
        tokens.append(_box(x, 28, CELL, fill, stroke, dash) + _text(centres[index], 54, text, ink))
    edges = []
    slots = []
    # A merged slot is as wide as its tokens, and the row is centred.
    widths = [len(members) * (CELL + GAP) - GAP for members in SLOTS]
    left = (WIDTH - sum(widths) - GAP * (len(widths) - 1)) / 2
    for members, width in zip(SLOTS, widths, strict=True):
        colour = merged if len(members) > 1 else kept
        middle = left + width / 2
        for token in members:
            path = f"M{centres[token]:g} 71C{centres[token]:g} 97.5 {middle:g} 97.5 {middle:g} 124"
            edges.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5" opacity="0.75"/>')
        text = " + ".join(TOKENS[token] for token in members)
        slots.append(_box(left, 126, width, colour, colour, "") + _text(middle, 152, text, on_fill))
        left += width + GAP
    labels = [
        f'<text x="1" y="{y}" fill="{quiet}" font-size="12.5">{words}</text>'
        for y, words in ((16, "tokens of the prompt"), (190, "slots of one head's cache"))
    ]
    body = "".join([labels[0], *tokens, *edges, *slots, labels[1]])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2} 196" width="{WIDTH + 2}" height="196" '
        f'font-family="Inter, system-ui, sans-serif" font-size="14">{body}</svg>'
    )


def _box(x: float, y: float, width: float, fill: str, stroke: str, extra: str) -> str:
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="5"'
    return f'{shape} fill="{fill}" stroke="{stroke}"{extra}/>'


def _text(x: float, y: float, text: str, colour: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="middle">{text}</text>'


SHOWN = 12
POLL_SECONDS = 2.0
ROW = [1.3, 3.2, 5.0, 1.3, 2.6]


def recent(polls: bool) -> None:
    """Open jobs and recent comparisons, newest first; redrawn while a job runs."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.header("Recent comparisons", width="stretch")
        is_reindexed = st.button(
            "Reindex", type="tertiary", icon=":material/refresh:", help="Rebuild the index of the folder of runs"
        )
    for problem in rebuild(runs_root()) if is_reindexed else []:
        st.warning(plain(problem))
    comparisons = list_comparisons(runs_root())
    ids = {comparison.comparison_id for comparison in comparisons}
    listed: list[jobs.JobStatus] = []
    try:
        listed = jobs.list_jobs(runs_root())
    except UserError as error:  # recorded comparisons are shown anyway
        st.warning(plain(str(error)))
    running = {job.job_id for job in listed if not job.ended}
    if polls and not running:
        st.rerun()
    for job in listed:
        if not job.ended or (job.state == "failed" and job.job_id not in ids):
            # A job that is queued, running, or failed before its first run.
            state, title, what, when, where = st.columns(ROW, vertical_alignment="center")
            with state:
                badge(job.state)
            title.markdown(plain(shorten(job.title)))
            stage = job.progress.stage if job.progress else "starting"
            what.caption(plain(job.message or (f"place {job.position} in the queue" if job.position else stage)))
            when.caption(ago(job.created))
            with where:
                link("compare", "Progress", job=job.job_id)
    ended = [entry for entry in comparisons if (entry.batch or entry.comparison_id) not in running]
    show(ended, {job.job_id: job for job in listed})


def show(ended: list[ComparisonEntry], by_id: dict[str, jobs.JobStatus]) -> None:
    """The latest comparisons, each batch as one, and a link to older ones."""
    groups = by_batch(ended)
    entries = shelf()
    # By comparison: how many compressed runs are right, and which is closest to the full cache, as far as is known.
    found = {}
    for line in entries.table[entries.table["kind"] == "comparison"].itertuples():
        closest = f"closest to the full cache: {line.closest}" if line.closest else ""
        found[line.id] = " · ".join(filter(None, (line.answer, closest)))
    outcomes = found
    for repeats in groups[:SHOWN]:
        first = repeats[0]
        # One comparison, or the repeats of a batch: status, prompt, what came out, runs, and links.
        job = by_id.get(first.batch or first.comparison_id)
        # After a job was stopped between two runs, all of its runs are complete.
        stopped = job if job is not None and job.state in ("failed", "cancelled") else None
        runs = [run for entry in repeats for run in entry.runs]
        reasons = [stopped.message] if stopped else [run.message for run in runs if run.message]
        state, title, what, when, where = st.columns(ROW, vertical_alignment="center")
        with state:
            status = stopped.state if stopped else worst_status({entry.status for entry in repeats})
            badge(status, next(iter(reasons), ""))
        with title:
            st.markdown(plain(shorten(first.text)))
            if outcome := outcomes.get(first.comparison_id, ""):
                st.caption(plain(outcome))
        methods = ", ".join(dict.fromkeys(run.method for run in first.runs))
        times = f"{prompts(len(repeats))} · " if len(repeats) > 1 else ""
        model = model_title(first.runs[0].model)
        what.caption(f"{plain(methods)}  \n{times}{plain(model)} · {first.runs[0].prompt_tokens:,} tokens")
        when.caption(ago(first.created))
        with where, st.container(horizontal=True):
            link("compare", "Result", comparison=first.comparison_id)
            link("timeline", "One head", comparison=first.comparison_id)
    if not ended:
        st.caption("There is no finished comparison yet. The sample prompt is the quickest way to get one.")
    if len(groups) > SHOWN:
        link(
            "runs",
            f"{len(groups) - SHOWN} older comparisons, and all results, under All runs",
            ":material/folder_open:",
        )
    shown = {entry.comparison_id for repeats in groups[:SHOWN] for entry in repeats}
    if unread := tuple(entry for entry in entries.unread if entry.comparison_id in shown):
        begin_reading(replace(entries, unread=unread))


def start_page() -> None:
    st.title("See what KV-cache compression does to tokens")
    words, picture = st.columns(2, gap="large", vertical_alignment="center")
    with words:
        st.markdown(
            "**Run** one prompt through a real language model under several KV-cache compression methods, "
            "each measured against the uncompressed cache.\n\n"
            "**Watch** which tokens every attention head keeps, evicts or merges, step by step, "
            "and what that costs in attention, in predictions and in the text.\n\n"
            "**Check** every number: figures export as PNG, SVG and CSV, and each run is a folder of plain Parquet."
        )
        with st.container(horizontal=True):
            if st.button("Try the sample prompt", type="primary", icon=":material/play_arrow:"):
                # Queue the sample comparison and show its progress.
                try:
                    with st.spinner("Reading the list of methods"):
                        request = sample_request()
                    job_id = jobs.submit(runs_root(), request, session_id())
                    jobs.ensure_worker(runs_root())
                except UserError as error:
                    st.error(plain(str(error)))
                else:
                    go("compare", job=job_id)
            if st.button("Use my own prompt", icon=":material/edit_note:"):
                go("new_run", source="Paste")
    with picture:
        st.image(drawing(theme()), width=460, alt="The same tokens in the cache of three methods")
        st.caption(
            "Schematic. Blue tokens keep their own slot, purple ones share a merged slot, dashed ones are evicted."
        )
    st.divider()
    busy = False
    try:
        with suppress(UserError):  # shown in the list of jobs
            busy = bool(jobs.list_jobs(runs_root(), open_only=True))
        st.fragment(recent, run_every=POLL_SECONDS if busy else None)(busy)
    except UserError as error:
        st.error(plain(str(error)))


MOST_PROBLEMS = 5


def runs_page() -> None:
    try:
        page.heading("All runs", "Comparisons, evaluations and benchmarks in this folder. Select rows to act on them.")
        entries = shelf()
        for problem in entries.problems[:MOST_PROBLEMS]:
            text = problem.replace(f"{runs_root()}/", "")  # pages show no paths of the server
            st.warning(f"Not in the list: {plain(text)}", icon=":material/broken_image:")
        if more := len(entries.problems[MOST_PROBLEMS:]):
            st.caption(f"{more:,} more folders are not in the list; `kvlab doctor {runs_root().name}` lists them.")
        if entries.table.empty:
            st.info("There are no results yet. Start a comparison on the page **New**, or import one.")
            bin_and_import()
            return
        query = filters(entries.table)
        found = entries.find(query)
        chosen = runs_table(entries.table, found, query)
        actions(chosen)
        bin_and_import()
        if entries.unread:
            begin_reading(entries)
    except UserError as error:
        st.error(plain(str(error)))
