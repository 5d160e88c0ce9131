"""Needles found by their place modulo the chunk that a method keeps or reads together: a table and a view."""

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.intervals import mean_over_groups
from kvlab.core import FULL, UserError
from kvlab.results.score_tables import NAMES, with_names
from kvlab.views.base import Theme, arm_text, finish, interval_bars, legend_room, number, run_styles
from kvlab.views.base.view import view

SIZES = ("length", "page", "read_page")  # settings that say how many tokens are kept or read together
READ_PAGES = {"quest": 16, "rocketkv": 4, "shadowkv": 8}  # of sparse attention without `read_page`
PAGE_WIDTH = 900  # pixels
CELL = ["task", *NAMES, "chunk", "chunked"]


@view("phase", title="Needles found by place in the chunk", page="quality")
def phase(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per task, method, budget and phase, for rows whose hidden statement has a known place.

    Columns: task, `NAMES`, chunk (tokens), chunked (the method keeps or reads that many together; else it is the
    largest chunk of the others), phase (place of the statement's first token modulo the chunk), samples, score with
    `_low` and `_high` (95 % interval).

    Raises:
        UserError: no row has a hidden statement whose place was recorded, or no method works in chunks or pages.
    """
    known = rows[rows["hidden_at"].notna()] if "hidden_at" in rows else rows.iloc[:0]
    if known.empty:
        raise UserError(
            "No prompt has a needle whose place was recorded (before November 2026 it was not) in these results: "
            "evaluate the task needle."
        )
    # Tokens that a method keeps or reads together by its settings; 1: token by token.
    together = []
    for values in known["settings"].map(lambda text: json.loads(text or "{}")):
        read_together = 1 if "read_page" in values else READ_PAGES.get(values.get("read"), 1)
        together.append(max([1, read_together, *(values[name] for name in SIZES if isinstance(values.get(name), int))]))
    sizes = pd.Series(together, known.index)
    if sizes.max() == 1:
        raise UserError(
            "No method of these results keeps or reads several tokens together, so none depends on the needle's place "
            "in a chunk: evaluate one that does beside them, such as chunkkv or snapkv:page=16."
        )
    chunk = sizes.where(sizes > 1, int(sizes.max()))
    named = with_names(known).assign(chunk=chunk, chunked=sizes > 1, phase=known["hidden_at"].astype(int) % chunk)
    lines = []
    for names, cell in named.groupby([*CELL, "phase"], dropna=False, sort=False):
        found = mean_over_groups(cell["score"].tolist(), None, kind="score")
        line = dict(zip([*CELL, "phase"], names, strict=True)) | {"samples": found.n, "score": found.mean}
        lines.append(line | {"score_low": found.low, "score_high": found.high})
    return pd.DataFrame(lines).sort_values(["task", "arm", "asked", "phase"], kind="stable", ignore_index=True)


@phase.figure
def draw_phase(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """A line a method and budget; dotted: those that work token by token, for comparison."""
    several = frame["task"].nunique() > 1
    names = []
    for line in frame.itertuples():
        name = "full cache" if line.arm == FULL.method else f"{arm_text(line.arm)} {line.asked}"
        names.append(f"{name}, {line.task}" if several else name)
    frame = frame.assign(name=names)
    pairs = frame[["name", "method"]].drop_duplicates().itertuples(index=False)
    styles = run_styles(((str(name), str(method)) for name, method in pairs), theme)
    figure = go.Figure()
    for name, group in frame.groupby("name", sort=False):
        style = styles[str(name)]
        size = int(group["chunk"].iloc[0])
        chunked = bool(group["chunked"].iloc[0])
        figure.add_scatter(
            x=group["phase"],
            y=group["score"],
            name=f"{name} (chunks of {size})" if chunked else str(name),
            mode="lines+markers",
            line={"color": style.colour, "dash": "solid" if chunked else "dot", "width": 1.8},
            marker={"symbol": style.marker, "size": 7, "color": style.colour},
            error_y=interval_bars(group),
            customdata=group["samples"],
            hovertemplate=f"{name}, place %{{x}} of {size}: %{{y:.2f}} (n = %{{customdata}})<extra></extra>",
        )
    height = 360 + legend_room(figure)
    place = "place of the needle's first token: position modulo tokens a chunk (dotted: token by token)"
    finish(figure, title=phase.title, x=place, y="share found", theme=theme, height=height)
    figure.update_layout(margin_t=figure.layout.margin.t + legend_room(figure, PAGE_WIDTH))  # the title above the names
    return figure.update_yaxes(range=[-0.04, 1.04], tickformat=".2~f").update_xaxes(
        dtick=1 if frame["chunk"].max() <= 20 else None
    )


@phase.caption
def describe_phase(frame: pd.DataFrame) -> str:
    """The extremes of the method that varies most by place, and, as a control, of what works token by token."""
    found: list[str] = []
    for cells in (frame[frame["chunked"]], frame[~frame["chunked"] & (frame["method"] != FULL.method)]):
        groups = [group for _, group in cells.groupby(CELL, dropna=False, sort=False)]
        if not groups:
            return f"Of the needles, {found[0]}; no method without chunks is here to compare."
        most = max(groups, key=lambda group: float(np.ptp(group["score"])))
        low = most.loc[most["score"].idxmin()]
        high = most.loc[most["score"].idxmax()]
        found.append(
            f"{arm_text(str(low['arm']))} {low['asked']} finds {number(low['score'])} at place {low['phase']} of "
            f"{low['chunk']} (n = {low['samples']}) and {number(high['score'])} at {high['phase']} "
            f"(n = {high['samples']})"
        )
    return f"Of the needles, {found[0]}; token by token, {found[1]}."
