"""A batch of prompts: accuracy or closeness per cell, the ranking over all prompts, and the prompts of a cell."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.compare import restore
from app.compare.board import budget_slider, home_view
from app.figures.export_menu import Offer, show_title
from app.figures.figure import show_view
from app.session.open_runs import runs_root
from kvlab.common.formatting import prompts
from kvlab.core.errors import UserError
from kvlab.report.views import table_of
from kvlab.requests.repeats import Repeat
from kvlab.trace.catalogue import list_repeats
from kvlab.trace.reader import Run, open_run
from kvlab.trace.record import FILE as RECORD
from kvlab.trace.schema import RunRecord
from kvlab.trace.user_labels import Labels, load_labels
from kvlab.views import repeats as figures
from kvlab.views.base import byte_size, of_batch, plural
from kvlab.views.board import verdict_text
from kvlab.views.frames import repeats as analysis
from kvlab.views.frames.trade_off import at_budget, batch_points
from kvlab.views.frames.verdict import NO_REFERENCE
from kvlab.views.lost_heads import count_lost_heads, failed_runs

LEAST_RESULTS = 2  # of searches, from which heads are counted
CHART = "repeats-chart"
CELL = "repeats-cell"
PROMPT = "repeats-prompt"
COLUMNS = {
    "depth": st.column_config.NumberColumn(format="%.0f %%", help="Position of the needle in the text"),
    "KL answer": st.column_config.NumberColumn(format="%.3g", help="Nats per token, on the answer's tokens"),
    "KL all": st.column_config.NumberColumn(format="%.3g", help="Nats per token, over the full cache's continuation"),
}


def batch_of(record: RunRecord) -> analysis.Batch | None:
    """The results of a run's batch so far; None for a run without repeats."""
    if not record.repeat:
        return None
    tables = []
    for entry in list_repeats(runs_root(), record.repeat.batch):
        try:
            paths = [runs_root() / run.run_id for run in entry.runs]
            written = tuple((path / RECORD).stat().st_mtime_ns for path in paths)
            labels = load_labels(runs_root(), entry.comparison_id)
            tables.append(_judged(tuple(map(str, paths)), written, labels))
        except UserError as error:
            st.error(plain(f"Prompt {entry.number} is skipped. {error}"))
    return analysis.build_batch(tables) if tables else None


def batch_section(runs: Sequence[Run], repeat: Repeat, batch: analysis.Batch) -> str:
    """The results of a batch, and links to its prompts; returns the chosen budget, "" for all.

    `runs` are those of the prompt in view, `repeat` is its place in the batch.
    """
    begun = len(batch.references)
    out_of = f" of {repeat.of} requested" if begun < repeat.of else ""
    references = figures.caption_references(batch) if batch.is_asked else ""
    about = "each has its own needle in the same text." if repeat.planting else "each was run separately."
    failing = NO_REFERENCE in references
    st.markdown(f"**{prompts(begun).capitalize()}**{out_of}: {about} {'' if failing else plain(references)}")
    if failing:
        st.warning(plain(references), icon=":material/warning:")
    points = batch_points(batch)
    budget = budget_slider(points)
    origin = of_batch(repeat.batch, begun)
    home_view(points, budget, origin)
    batch = replace(batch, cells=at_budget(batch.cells, budget))
    if len(batch.cells):
        if batch.is_asked:
            every = batch.prompts
            show_view(
                "repeats",
                runs,
                CHART,
                on_click=lambda cell: st.session_state.update({CELL: f"{cell[0]} | {cell[1]}"}),  # lists its prompts
                source=origin,
                frame=every,
                budget=budget,
            )
        # The heads that lost the answers, over all prompts and as far as searches found them, and the missing
        # searches.
        shown = set(batch.cells["row"] + "|" + batch.cells["column"])
        failed = failed_runs(batch.prompts[(batch.prompts["row"] + "|" + batch.prompts["column"]).isin(shown)])
        results = restore.results_of(zip(failed["comparison_id"], failed["run_id"], strict=True))
        if len(results) >= LEAST_RESULTS:
            lost = count_lost_heads(list(results.values()), runs[0].record)
            show_view("lost_heads", runs, "lost-heads", source=origin, frame=lost)
        restore.search_all([name for name in failed["run_id"] if name not in results], restore.EACH, "search-batch")
        # The ranking at equal bytes, the significant differences, and the cells that are not ranked.
        groups, left_out = analysis.rank_cells(batch.cells)
        if groups:
            order = "highest accuracy" if batch.is_asked else "closest to the full cache"
            st.markdown(f"**Ranking over all prompts**, {order} first, at equal live bytes:")
        for group in groups:
            size = byte_size(group["live_bytes"].median())
            st.markdown(
                f"{plain(size)}: "
                + ", ".join(f"**{plain(row.label)}** {plain(figures.score_text(row))}" for row in group.itertuples())
            )
            if apart := figures.caption_significance(batch, group):
                st.caption(plain(apart))
        reasons = ["**full cache**: the reference"]
        reasons += [f"**{plain(label)}**: {reason}" for label, reason in left_out]
        st.caption(f"Not ranked: {'; '.join(reasons)}.")
        cell_section(batch, runs[0].record.comparison_id)
    st.header(f"Prompt {repeat.number} of {repeat.of}")
    st.caption(plain(f"The needle's {repeat.description}." if repeat.planting else repeat.description))
    return budget


def cell_section(batch: analysis.Batch, comparison_id: str) -> None:
    """The prompts of one cell, and the picker of the one shown below."""
    places = {f"{row.row} | {row.column}": (row.row, row.column) for row in batch.cells.itertuples()}
    if st.session_state.get(CELL) not in places:
        # Begin with the cell whose accuracy is nearest to one half.
        first = batch.cells.iloc[0]
        if batch.cells["n"].any():
            share = batch.cells["share"].astype(float).fillna(1.0)
            first = batch.cells.loc[(share - 0.5).abs().idxmin()]
        st.session_state[CELL] = f"{first['row']} | {first['column']}"
    chosen = st.selectbox("Prompts of (or click a cell)", list(places), key=CELL)
    single = analysis.single_prompts(batch, *places[chosen])
    source = f"comparison {comparison_id} · {plural(len(single), 'prompt')}"
    offer = Offer(f"{chosen}: one row per prompt", lambda: table_of(_readable(single)), source=source)
    show_title(offer, "repeats-table")
    st.dataframe(
        _readable(single),
        hide_index=True,
        column_config=COLUMNS,
        alt="One row per prompt of the chosen cell",
        placeholder="",
    )
    names = {}
    for row in single.itertuples():
        # Columns that tell prompts apart.
        label = row.name if pd.isna(row.depth) else f"depth {100 * row.depth:g} %, wording {row.wording:.0f}"
        names[row.comparison_id] = f"{row.number} of {row.of}: {label}"
    if comparison_id not in names:
        names[comparison_id] = "the one shown"
    place = list(names).index(comparison_id)
    picked = st.selectbox(
        "Prompt shown below", list(names), index=place, format_func=names.__getitem__, key=f"{PROMPT}-{comparison_id}"
    )
    if picked != comparison_id:
        go("compare", comparison=picked)


def _readable(single: pd.DataFrame) -> pd.DataFrame:
    asked = single["reference"].ne(analysis.NOT_ASKED)
    table = {"prompt": single["number"]}
    if single["depth"].isna().any():
        table["name"] = single["name"]
    if asked.any():
        answers = [verdict_text(row) if known else "" for row, known in zip(single.itertuples(), asked, strict=True)]
        table |= {"answer": answers, "expected": single["answer"], "full cache": single["reference"]}
    if single["depth"].notna().all():
        table |= {"depth": 100 * single["depth"], "wording": single["wording"]}
    if asked.any():
        table["KL answer"] = single["kl_answer"].astype(float)
    return pd.DataFrame(table | {"KL all": single["mean_kl"].astype(float)})


@st.cache_data(max_entries=512, show_spinner="Scoring the prompts")
def _judged(paths: tuple[str, ...], written: tuple[int, ...], labels: Labels) -> pd.DataFrame:
    return analysis.repeat_table([open_run(Path(path)) for path in paths], labels)
