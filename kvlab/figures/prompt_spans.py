"""Spans of a prompt: what each method and budget has left of every part, beside the answers."""

from __future__ import annotations

import html
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import join_words
from kvlab.figures.board import NO_GRID, VERDICTS, no_fading
from kvlab.figures.simple import comparison as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.cells import colours_at, ink_on
from kvlab.views.base.lines import hatch
from kvlab.views.base.palette import FATES, HUES, SEQUENTIAL, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.template import INK, finish
from kvlab.views.base.words import number, percent, plural, visible

# pixels of a row; shares of a column and of a row that a cell covers
ROW = 30
WIDTH = 0.94
HEIGHT = 0.9
GAP = 0.35  # columns between two methods, and rows above the answers
# height and bottom of the strip of fates, in rows below a row's middle
STRIP = 0.2
FOOT = 0.4
PAGE_PIXELS = 780  # for all columns, in a window of 1,280 pixels
# pixels of a column from which numbers have a unit, and are written at all
ROOMY = 50
NARROW = 24
MOST_NAMED = 3
NEEDED = "fact|rule|question|system"  # labels that are named first
WORDS = {True: "obeyed", False: "not obeyed"}
DEAD_LABEL = "largest budget at which a method has lost the part (under 5 % held)"


def span_map(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """Spans (down) by runs (across): the share held, the strip of fates under it, and the answers in the last rows.

    `frame` is that of `analysis.comparison.span_shares.spans_by_run` with the columns verdict (of the run's answer, ""
    if unknown) and obeyed (whether the answer obeys the span's rule, empty for other spans). customdata of every cell
    begins with run id and first token of the span.
    """
    cells, columns, rows = _in_grid(frame)
    figure = go.Figure([_grounds(cells, theme), *_strips(cells, theme)])
    answers = _answer_rows(cells, len(rows))
    if len(answers):
        figure.add_trace(_answer_grounds(answers, theme))
    figure.add_trace(_dead_legend(theme))
    last = float(answers["y"].max()) if len(answers) else len(rows) - 1.0
    moment = moment_of(frame)
    height = round(ROW * (last + 1)) + 190
    finish(
        figure,
        title=f"What is left of each part of the prompt {moment}",
        x="method and budget",
        y="part of the prompt (tokens)",
        theme=theme,
        height=height,
    )
    look = {"tickfont": {"color": INK[theme], "size": 12}, **NO_GRID}
    figure.update_xaxes(
        side="top",
        tickvals=columns["x"].tolist(),
        ticktext=_column_names(columns),
        tickangle=0,
        range=[-0.55, columns["x"].max() + 0.55],
        **look,
    )
    names = [f"{visible(row.span, 30).replace('·', ' ')} ({row.tokens:,})" for row in rows.itertuples()]
    below = answers.drop_duplicates("y")
    figure.update_yaxes(
        range=[last + 0.55, -0.55], tickvals=[*range(len(rows)), *below["y"]], ticktext=[*names, *below["name"]], **look
    )
    figure.update_layout(
        barmode="overlay",
        hovermode="closest",
        clickmode="event+select",
        dragmode=False,
        margin_b=64,
        margin_t=104,
        annotations=_numbers(cells, answers, len(columns), theme),
        shapes=_outlines(cells, theme),
        legend={"y": -0.02, "yanchor": "top", "itemclick": False, "itemdoubleclick": False},
    )
    return figure


@with_simple(simple.spans)
def caption_spans(frame: pd.DataFrame) -> str:
    """The parts of which most and least is left, the first parts that are lost, and how many answers are right."""
    cells = frame[frame["method"] != "full"]
    if cells.empty:
        return f"The full cache holds all of the {plural(frame['span'].nunique(), 'part')}; there is no compressed run."
    runs = cells.drop_duplicates("run_id")
    held = cells.groupby("span", sort=False)["held"].mean().sort_values(kind="stable")
    told = [
        f"{moment_of(frame).capitalize()}, mean over {plural(len(runs), 'compressed run')}, layers, heads and tokens: "
        f"most is left of {held.index[-1]} ({percent(held.iloc[-1])}), least of {held.index[0]} "
        f"({percent(held.iloc[0])})."
    ]
    dead = cells[cells["first_dead"]]
    if len(dead):
        needed = dead["span"].str.match(NEEDED)  # before running text
        dead = pd.concat([dead[needed], dead[~needed]])
        names = [f"{cell.span} ({cell.row} at {cell.column})" for cell in dead.head(MOST_NAMED).itertuples()]
        more = [f"{len(dead) - MOST_NAMED} more"] if len(dead) > MOST_NAMED else []
        told.append(f"From large budgets to small, first lost (under 5 % held): {join_words([*names, *more])}.")
    else:
        told.append("No part falls under 5 %.")
    return " ".join([*told, *_read_answers(frame)])


def _read_answers(frame: pd.DataFrame) -> list[str]:
    """How many answers of compressed runs are right, and rules obeyed, each with the full cache's own."""
    told = []
    is_full = frame["method"] == "full"
    known = frame[frame["verdict"] != ""].drop_duplicates("run_id")
    if len(own := known[known["method"] != "full"]):
        full = known.loc[known["method"] == "full", "verdict"]
        also = f" (the full cache's: {full.iloc[0]})" if len(full) else ""
        told.append(f"{int((own['verdict'] == 'right').sum())} of {plural(len(own), 'answer')} are right{also}.")
    obeyed = frame["obeyed"].astype("boolean")
    if len(own := obeyed[~is_full].dropna()):
        full = obeyed[is_full].dropna()
        also = f" (the full cache: {percent(full.mean())})" if len(full) else ""
        told.append(f"{percent(own.mean())} of the rules are obeyed{also}.")
    return told


def moment_of(frame: pd.DataFrame) -> str:
    """The step of the cells as a phrase."""
    step = int(frame["step"].iloc[0])
    return "after the prompt" if step == 0 else f"after step {step}"


def _in_grid(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The cells with x and y; one line per run with its x; one line per span."""
    columns = frame.drop_duplicates("run_id").reset_index(drop=True)
    places = [0.0]
    for before, here in pairwise(columns["row"]):
        places.append(places[-1] + 1 + (GAP if before != here else 0))
    columns = columns.assign(x=places)
    rows = frame.drop_duplicates("span").reset_index(drop=True)
    x = dict(zip(columns["run_id"], places, strict=True))
    y = {name: at for at, name in enumerate(rows["span"])}
    return frame.assign(x=frame["run_id"].map(x), y=frame["span"].map(y)), columns, rows


def _column_names(columns: pd.DataFrame) -> list[str]:
    """Budgets, with the method above the first of its own."""
    firsts = ~columns["row"].duplicated()
    alone = columns.groupby("row")["run_id"].transform("size") == 1
    names = []
    for line, first, single in zip(columns.itertuples(), firsts, alone, strict=True):
        budget = f"{percent(line.slots)}" if line.column == "its own budget" else line.column
        long = visible(line.row, 16 if single else 18)
        # In smaller letters a long name fits its column whole.
        long = f"<span style='font-size:10px'>{long}</span>" if single and len(line.row) > 12 else long
        names.append(f"<b>{long if first else ' '}</b><br>{budget}")
    return names


def _grounds(cells: pd.DataFrame, theme: Theme) -> go.Bar:
    """A clickable card behind each cell, in the colour of the share held."""
    return go.Bar(
        x=cells["x"],
        y=[HEIGHT] * len(cells),
        base=cells["y"] - HEIGHT / 2,
        width=WIDTH,
        showlegend=False,
        marker={"color": _colours(cells, theme), "line": {"width": 0}},
        customdata=[[cell.run_id, cell.first, cell_words(cell)] for cell in cells.itertuples()],
        hovertemplate="%{customdata[2]}<extra></extra>",
        **no_fading(),
    )


def _strips(cells: pd.DataFrame, theme: Theme) -> list[go.Bar]:
    """The shares kept, merged and dropped from left to right, in the colours and patterns of the board."""
    room = WIDTH - 0.1
    traces = []
    before = np.zeros(len(cells))
    for fate, (name, state, pattern) in FATES.items():
        share = cells[fate].to_numpy(float)
        colour = pick(STATE_COLOURS[state], theme)
        traces.append(
            go.Bar(
                x=cells["x"] - room / 2 + room * (before + share / 2),
                y=[STRIP] * len(cells),
                base=cells["y"] + FOOT - STRIP,
                width=room * share,
                name=name,
                hoverinfo="skip",
                marker={
                    "color": colour,
                    "pattern": hatch(pattern, colour, theme, size=4),
                    "line": {"width": 0.5, "color": SURFACES[theme]},
                },
                **no_fading(),
            )
        )
        before += share
    return traces


def _answer_rows(cells: pd.DataFrame, below: int) -> pd.DataFrame:
    """One line per run and row under the spans: name, x, y, kind (of `VERDICTS`) and words; none without answers."""
    runs = cells.drop_duplicates("run_id")
    at = below + GAP
    lines = []
    if (runs["verdict"] != "").any():
        lines += [("answer", run.x, at, run.verdict or "unfinished", run.verdict) for run in runs.itertuples()]
        at += 1
    rules = cells.dropna(subset=["obeyed"])
    for x, group in rules.groupby("x"):
        kept = int(group["obeyed"].astype(bool).sum())
        every = len(group)
        kind = "right" if kept == every else "wrong" if not kept else "nearly"
        lines.append(("rules obeyed", float(x), at, kind, f"{kept}/{every}"))
    return pd.DataFrame(lines, columns=["name", "x", "y", "kind", "words"])


def _answer_grounds(answers: pd.DataFrame, theme: Theme) -> go.Bar:
    colours = [pick(HUES[VERDICTS[kind][1]], theme) for kind in answers["kind"]]
    return go.Bar(
        x=answers["x"],
        y=[HEIGHT] * len(answers),
        base=answers["y"] - HEIGHT / 2,
        width=WIDTH,
        showlegend=False,
        marker={
            "color": [mix(colour, SURFACES[theme], 0.86) for colour in colours],
            "line": {"color": colours, "width": 1.5},
        },
        customdata=answers[["name", "words"]].to_numpy(),
        hovertemplate="%{customdata[0]}: %{customdata[1]}<extra></extra>",
        **no_fading(),
    )


def _numbers(cells: pd.DataFrame, answers: pd.DataFrame, columns: int, theme: Theme) -> list[dict[str, Any]]:
    """The share held in each cell with the mark of its rule, and the words of the answers, where they fit."""
    pixels = PAGE_PIXELS / columns
    if pixels < NARROW:
        return []
    unit = " %" if pixels >= ROOMY else ""
    written = []
    for cell, colour in zip(cells.itertuples(), _colours(cells, theme), strict=True):
        mark = "" if pd.isna(cell.obeyed) else " ✓" if cell.obeyed else " ✗"
        text = f"{_short(cell.held)}{unit if pixels >= 1.5 * ROOMY or not mark else ''}{mark}"
        ground = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        written.append((cell.x, cell.y - 0.13, text, ink_on(ground)))
    for line in answers.itertuples():
        sign = VERDICTS[line.kind][0]
        words = line.words if line.name != "answer" else f"{sign} {line.words}" if pixels >= 1.5 * ROOMY else sign
        written.append((line.x, line.y, html.escape(words, quote=False), INK[theme]))
    return [
        {"x": x, "y": y, "text": text, "showarrow": False, "font": {"size": 12, "color": colour}}
        for x, y, text, colour in written
    ]


def _short(share: float) -> str:
    """A percentage without its unit; with a decimal under 10, so that one sees which cells are under 5."""
    if 0 < share < 0.0005:
        return "<0.1"
    return f"{100 * share:.0f}" if share == 0 or share >= 0.0995 else f"{100 * share:.1f}"


def _outlines(cells: pd.DataFrame, theme: Theme) -> list[dict[str, Any]]:
    """Around the largest budget at which a span is dead, seen on every ground."""
    edges = [(SURFACES[theme], 5), (pick(HUES["red"], theme), 2.5)]
    return [
        {
            "type": "rect",
            "x0": cell.x - WIDTH / 2,
            "x1": cell.x + WIDTH / 2,
            "y0": cell.y - HEIGHT / 2,
            "y1": cell.y + HEIGHT / 2,
            "line": {"color": colour, "width": width},
            "layer": "above",
        }
        for cell in cells[cells["first_dead"]].itertuples()
        for colour, width in edges
    ]


def _dead_legend(theme: Theme) -> go.Scatter:
    look = {"symbol": "square-open", "size": 12, "color": pick(HUES["red"], theme), "line": {"width": 2.5}}
    return go.Scatter(x=[None], y=[None], mode="markers", marker=look, name=DEAD_LABEL, hoverinfo="skip")


def _colours(cells: pd.DataFrame, theme: Theme) -> list[str]:
    """#RRGGBB of the share held of each cell."""
    scale = [(place / (len(SEQUENTIAL[theme]) - 1), colour) for place, colour in enumerate(SEQUENTIAL[theme])]
    return [
        "#{:02X}{:02X}{:02X}".format(*(round(channel) for channel in colour))
        for colour in colours_at(scale, cells["held"].to_numpy(float))
    ]


def cell_words(cell: Any) -> str:
    """Hover text of a cell."""
    shares = ", ".join(f"{percent(getattr(cell, fate))} {name}" for fate, (name, *_) in FATES.items())
    parts = [
        f"<b>{visible(cell.label, 60).replace('·', ' ')}</b>: {visible(cell.span, 40).replace('·', ' ')}",
        f"{plural(cell.tokens, 'token')} from token {cell.first}",
        f"{shares} (layers, heads and tokens)",
        f"{percent(cell.unreachable)} of its tokens are in no head at all",
        f"{number(100 * cell.slots)} % of the prompt's slots are left",
    ]
    parts += [f"the answer is {cell.verdict}"] if cell.verdict else []
    parts += [] if pd.isna(cell.obeyed) else [f"the rule is {WORDS[bool(cell.obeyed)]}"]
    return "<br>".join(parts)
