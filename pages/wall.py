"""Cache wall: every layer and head of a run at once, step by step, or the difference of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.base.theme import theme as page_theme
from app.components.wall import cache_wall
from app.figures.figure import heading, note
from app.figures.tables import show_table
from app.navigation.place import chosen_step, step_reason
from app.navigation.selection import current_sources, other_run
from app.navigation.token_cursor import chosen_token
from app.run_views import page, view
from app.session.url_state import go_to
from app.wall.contents import comparable_wall, facts_of, open_wall, picture_at, reads_at
from app.wall.panes import Place, docked_panes
from kvlab.trace.reader import Run

WALL = "cache-wall"


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
    one = open_wall(run)
    second = comparable_wall(one, other)
    step = chosen_step(run, one.wall.steps.tolist())
    token = chosen_token(run.record.comparison_id, one.wall.tokens)
    picture = picture_at(one, second, step)
    name = page.file_name(run, f"wall-step-{step}")
    heading(picture.title, picture.draw, picture.shares, picture.caption, WALL, name, picture.source)
    cache_wall(
        one.wall,
        one.data,
        None if second is None else second.data,
        page.token_texts_of(run, one.wall.tokens),
        identity=f"{run.path}/{'' if second is None else second.run.path}",
        step=step,
        why=step_reason(run),
        focus=(layer, head),
        token=token,
        facts=facts_of(run),
        reads=reads_at(run, one.wall, step) if second is None else None,
        looks=picture.looks,
        theme=page_theme(),
        key=WALL,
        on_step=remember_step,
        on_place=remember_place,
    )
    note(picture.caption)
    docked_panes(Place(run, None if second is None else second.run, runs, layer, head, step, token))
    with st.expander("Shares of every head, as a table"):
        show_table(picture.shares, f"Heads after step {step}", height=360)


def remember_step() -> None:
    if (step := st.session_state[WALL].get("step")) is not None:
        go_to(step=int(step))


def remember_place() -> None:
    if (place := st.session_state[WALL].get("place")) is not None:
        layer, head, token = (int(number) for number in place)
        go_to(layer=layer, head=head, **({"token": token} if token >= 0 else {}))


main()
