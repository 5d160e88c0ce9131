"""What a wall shows of a run, or of the difference of two: fates, shares by head, most read tokens, facts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.components.payload import SharedData
from app.components.wall import Looks, Reads, wall_data
from app.run_views import page
from app.session.open_runs import BY_STAMP
from kvlab.analysis.attention.most_read import most_read
from kvlab.core.errors import UserError
from kvlab.figures import wall as figures
from kvlab.figures.difference import hues_of, wall_looks
from kvlab.trace.reader import Run
from kvlab.views.base.provenance import Provenance, join_sources
from kvlab.views.frames.facts import fact_spans
from kvlab.views.frames.wall import Wall, difference_by_head, difference_codes, shares_by_head, wall_of

MOST_READ = 8  # slots of each head
OPEN_WALLS = 6


@dataclass(frozen=True)
class OpenWall:
    """A run, its wall, and the wall as sent to the browser."""

    run: Run
    wall: Wall
    data: SharedData


@dataclass(frozen=True)
class WallPicture:
    """A wall at a step: codes (heads, tokens), their looks, shares of each head, and the sentence about them."""

    title: str
    layers: tuple[int, ...]
    heads: int
    codes: np.ndarray
    looks: Looks
    shares: pd.DataFrame
    caption: str
    source: Provenance

    def draw(self) -> go.Figure:
        """The wall as a static figure, for exports."""
        colours, names, _ = self.looks
        return figures.wall_picture(self.codes, list(self.layers), self.heads, colours, names, self.title, page_theme())


@st.cache_resource(max_entries=OPEN_WALLS, show_spinner="Reading the events of all heads", hash_funcs=BY_STAMP)
def open_wall(run: Run) -> OpenWall:
    """The wall of a run; raises UserError as `wall_of`."""
    wall = wall_of(run)
    return OpenWall(run, wall, wall_data(wall))


def comparable_wall(one: OpenWall, other: Run | None) -> OpenWall | None:
    """The wall of the other run; None, with a sentence, if it does not show the same heads and tokens."""
    if other is None:
        return None
    try:
        found = open_wall(other)
    except UserError as error:
        st.info(plain(f"No difference: {error}"), icon=":material/info:")
        return None
    a = one.wall
    b = found.wall
    if (a.layers, a.heads) == (b.layers, b.heads) and np.array_equal(a.birth, b.birth):
        return found
    names = f"{one.run.record.label} and {other.record.label}"
    sentence = f"{names} have not read the same tokens in the same steps, so only the first is shown."
    st.info(plain(sentence), icon=":material/info:")
    return None


def picture_at(one: OpenWall, other: OpenWall | None, step: int) -> WallPicture:
    """What to show after `step`: the fates in a run, or with `other` the difference of the two."""
    record = one.run.record
    wall = one.wall
    theme = page_theme()
    moment = "the prompt" if step == 0 else f"step {step}"
    if other is None:
        looks = figures.fate_looks(theme)
        shares = shares_by_head(wall, step)
        caption = figures.caption_wall(shares, looks[1])
        source = page.source(one.run)
        title = f"{record.label}: the cache after {moment}"
        codes = wall.fates(step)
    else:
        second = other.run.record
        looks = wall_looks(hues_of(record.method, second.method), record.label, second.label, theme)
        shares = difference_by_head(wall, other.wall, step)
        caption = figures.caption_difference(shares, looks[1])
        source = join_sources(*map(page.source, (one.run, other.run)))
        title = f"{record.label} and {second.label}: the caches after {moment}"
        codes = difference_codes(wall.fates(step), other.wall.fates(step))
    return WallPicture(title, wall.layers, wall.heads, codes, looks, shares, caption, source)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=BY_STAMP | {Wall: lambda wall: wall.tokens})
def reads_at(run: Run, wall: Wall, step: int) -> Reads | None:
    """The tokens read most at a step in every head; None if attention was not recorded then."""
    row, remainder = divmod(int(np.searchsorted(wall.steps, step)), run.attention_every)
    positions, masses = most_read(run, wall.layers, row, MOST_READ)
    return None if remainder or (positions < 0).all() else (positions, masses)


def facts_of(run: Run) -> list[tuple[int, int]]:
    """First and last positions of the run's facts; none if its tokens are damaged, which the bar explains."""
    try:
        return fact_spans(run.tokens, run.record.prompt, run.record.facts)
    except UserError:
        return []
