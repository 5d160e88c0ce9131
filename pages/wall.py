"""Cache wall: every layer and head of a run at once, step by step, or the difference of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.payload import SharedData
from app.components.wall import Looks, Reads, cache_wall, wall_data
from app.figures.figure import heading, note
from app.figures.tables import show_table
from app.navigation.selection import chosen_step, current_sources, other_run, step_reason
from app.run_views import page, view
from app.session.open_runs import BY_STAMP
from app.session.url_state import go_to, url_number
from app.wall.panes import Place, docked_panes
from kvlab.analysis.attention.most_read import most_read
from kvlab.analysis.comparison.facts import fact_spans
from kvlab.analysis.lineage.wall import Wall, difference_by_head, difference_codes, shares_by_head, wall_of
from kvlab.common.errors import UserError
from kvlab.figures import wall as figures
from kvlab.figures.difference import hues_of, wall_looks
from kvlab.results.provenance import joined
from kvlab.trace.reader import Run

WALL = "cache-wall"
MOST_READ = 8  # slots of each head
OPEN_WALLS = 6


def main() -> None:
    page.heading(
        "Cache wall",
        "All heads at once: layers across, KV heads down. Each tile is the text, read like a page, in the colours of "
        "what its head has made of each token. Move through the steps, zoom in until you read the words, click a head "
        "to take it to the views below and to every other page.",
    )
    sources = current_sources()
    run = sources.run
    if run is None:
        return
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, "single events, so the fate of tokens is unknown")
        return
    if view.nothing_recorded(run):
        return
    view.at_place(run, partial(whole_wall, run, other_run(run, sources.runs), sources.runs))


def whole_wall(run: Run, other: Run | None, runs: Sequence[Run], layer: int, head: int) -> None:
    wall, data = open_wall(run)
    compared = None if other is None else comparable_wall(run, wall, other)
    step = chosen_step(run, wall.steps.tolist())
    codes, table, looks = codes_at(run, wall, other, compared, step)
    reading = figures.read_wall(table, looks[1]) if compared is None else figures.read_difference(table, looks[1])
    name = run.record.label if compared is None or other is None else f"{run.record.label} and {other.record.label}"
    title = f"{name}: the cache after {'the prompt' if step == 0 else f'step {step}'}"
    source = page.source(run) if compared is None or other is None else joined(page.source(run), page.source(other))
    theme = page_theme()
    draw = partial(figures.wall_picture, codes, list(wall.layers), wall.heads, looks[0], looks[1], title, theme)
    heading(title, draw, table, reading, WALL, page.file_name(run, f"wall-step-{step}"), source)
    cache_wall(
        wall,
        data,
        None if compared is None else compared[1],
        page.token_texts_of(run, wall.tokens),
        identity=f"{run.path}/{'' if other is None else other.path}",
        step=step,
        why=step_reason(run),
        focus=(layer, head),
        token=url_number("token"),
        facts=facts_of(run),
        reads=reads_at(run, wall, step) if compared is None else None,
        looks=looks,
        theme=theme,
        key=WALL,
        on_step=remember_step,
        on_place=remember_place,
    )
    note(reading)
    docked_panes(Place(run, None if compared is None else other, runs, layer, head, step, url_number("token")))
    with st.expander("Shares of every head, as a table"):
        show_table(table, f"Heads after step {step}", height=360)


def codes_at(
    run: Run, wall: Wall, other: Run | None, compared: tuple[Wall, SharedData] | None, step: int
) -> tuple[np.ndarray, pd.DataFrame, Looks]:
    """Codes of all cells, shares by head, and what the codes look like."""
    if compared is None or other is None:
        return wall.fates(step), shares_by_head(wall, step), figures.fate_looks(page_theme())
    codes = difference_codes(wall.fates(step), compared[0].fates(step))
    hues = hues_of(run.record.method, other.record.method)
    looks = wall_looks(hues, run.record.label, other.record.label, page_theme())
    return codes, difference_by_head(wall, compared[0], step), looks


def comparable_wall(run: Run, wall: Wall, other: Run) -> tuple[Wall, SharedData] | None:
    """The other run's wall; None, with a sentence, if it does not show the same heads and tokens."""
    try:
        found = open_wall(other)
    except UserError as error:
        st.info(plain(f"No difference: {error}"), icon=":material/info:")
        return None
    same = (
        found[0].layers == wall.layers and found[0].heads == wall.heads and np.array_equal(found[0].birth, wall.birth)
    )
    if not same:
        st.info(
            plain(f"{run.record.label} and {other.record.label} have not read the same tokens in the same steps, so "
                  "only the first is shown."),
            icon=":material/info:",
        )  # fmt: skip
    return found if same else None


@st.cache_resource(max_entries=OPEN_WALLS, show_spinner="Reading the events of all heads", hash_funcs=BY_STAMP)
def open_wall(run: Run) -> tuple[Wall, SharedData]:
    wall = wall_of(run)
    return wall, wall_data(wall)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=BY_STAMP | {Wall: lambda wall: wall.tokens})
def reads_at(run: Run, wall: Wall, step: int) -> Reads | None:
    row, remainder = divmod(int(np.searchsorted(wall.steps, step)), run.attention_every)
    positions, masses = most_read(run, wall.layers, row, MOST_READ)
    return None if remainder or (positions < 0).all() else (positions, masses)


def facts_of(run: Run) -> list[tuple[int, int]]:
    try:
        return fact_spans(run.tokens, run.record.prompt, run.record.facts)
    except UserError:  # damaged tokens, which the bar explains
        return []


def remember_step() -> None:
    if (step := st.session_state[WALL].get("step")) is not None:
        go_to(step=int(step))


def remember_place() -> None:
    if (place := st.session_state[WALL].get("place")) is not None:
        layer, head, token = (int(number) for number in place)
        go_to(layer=layer, head=head, **({"token": token} if token >= 0 else {}))


main()
