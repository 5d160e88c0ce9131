"""Spans of a prompt: what each method and budget has kept of every part, beside the answers."""

import html
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.core.choice import FULL
from kvlab.trace.reader import Run
from kvlab.views.base import palette
from kvlab.views.base.head_map import colours_at, ink_on
from kvlab.views.base.lines import hatch
from kvlab.views.base.template import INK, NO_GRID, QUIET, finish, no_fading
from kvlab.views.base.view import view
from kvlab.views.base.words import contrast, number, part, percent, plural, sentence, visible
from kvlab.views.frames.board import ExpectedAnswer, answer_texts, judge_any, places, reference_texts
from kvlab.views.frames.prompt_spans import Span, find_spans
from kvlab.views.frames.wall import Fate, Wall
from kvlab.views.wall import open_wall

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
WORDS = {True: "obeyed", False: "not obeyed"}
DEAD_LABEL = "largest budget at which a method has lost the part (under 5 % held)"
# panels side by side; pixels of one from top to bottom
PANELS = 4
PANEL = 190
DEAD = 0.05  # share of (layer, head, token) below which a span is dead
OF_RUN = ("run_id", "label", "method", "row", "column", "slots")


@view("spans", title="What is kept of each part of the prompt", needs="full", page="cache")
def spans(
    runs: Sequence[Run],
    step: int | None = None,
    spans: tuple[Span, ...] | None = None,
    expected_answer: ExpectedAnswer | None = None,
    obeyed: Mapping[tuple[str, str], bool] | None = None,
) -> pd.DataFrame:
    """`spans_by_run` of the runs that have read the first one's prompt, after the step, else after the last.

    Args:
        spans: parts of the prompt; those that `find_spans` finds by default.
        expected_answer: judges the runs' own texts (column verdict, "" if unknown).
        obeyed: whether a run's text obeys the rule that a span states, by run id and label (column obeyed).
    """
    alike = [run for run in runs if not why_unknown(run, runs[0])]
    if spans is None:
        facts = runs[0].record.facts if expected_answer is None else expected_answer.facts
        spans = find_spans(runs[0], facts)
    walls = [open_wall(run) for run in alike]
    frame = spans_by_run(alike, walls, spans, int(walls[0].steps[-1]) if step is None else step)
    pairs = zip(frame["run_id"], frame["span"], strict=True)
    verdicts: dict[str, str] = {}
    if expected_answer is not None:
        texts = reference_texts(alike)
        for run in alike:
            judged = judge_any(answer_texts(run, "free"), expected_answer.answers, texts)
            verdicts[run.record.run_id] = judged.kind
    return frame.assign(
        verdict=frame["run_id"].map(verdicts).fillna(""),
        obeyed=pd.Series([(obeyed or {}).get(pair) for pair in pairs], dtype="boolean"),
    )


spans_by_budget = view("spans_by_budget", title="What is kept of each part, by budget", needs="full", page="cache")(
    spans.read
)


@spans.figure
def draw_spans(frame: pd.DataFrame, theme: palette.Theme) -> go.Figure:
    """Spans (down) by runs (across): the share kept whole, the strip of fates under it, and the answers below.

    customdata of every cell begins with run id and first token of the span.
    """
    cells, columns, rows = _in_grid(frame)
    # Each card has the colour of the share kept whole.
    card = {"color": _colours(cells, theme), "line": {"width": 0}}
    data = [[cell.run_id, cell.first, cell_words(cell)] for cell in cells.itertuples()]
    figure = go.Figure([_cards(cells, card, data, "%{customdata[2]}"), *_strips(cells, theme)])
    answers = _answer_rows(cells, len(rows))
    if len(answers):
        colours = [palette.pick(palette.HUES[palette.VERDICTS[kind][1]], theme) for kind in answers["kind"]]
        card = {
            "color": [palette.mix(colour, palette.SURFACES[theme], 0.86) for colour in colours],
            "line": {"color": colours, "width": 1.5},
        }
        data = answers[["name", "words"]].to_numpy().tolist()
        figure.add_trace(_cards(answers, card, data, "%{customdata[0]}: %{customdata[1]}"))
    if cells["first_dead"].any():
        mark = {
            "symbol": "square-open",
            "size": 12,
            "color": palette.pick(palette.HUES["red"], theme),
            "line": {"width": 2.5},
        }
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=mark, name=DEAD_LABEL, hoverinfo="skip")
    last = float(answers["y"].max()) if len(answers) else len(rows) - 1.0
    moment = moment_of(frame)
    height = round(ROW * (last + 1)) + 190
    finish(
        figure,
        title=f"What is kept of each part of the prompt {moment}",
        x="method and budget",
        y="part of the prompt (tokens)",
        theme=theme,
        height=height,
    )
    look = {"tickfont": {"color": INK[theme], "size": 12}, **NO_GRID}
    figure.update_xaxes(
        side="top",
        tickvals=columns["x"].tolist(),
        ticktext=columns["name"].tolist(),
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


@spans_by_budget.caption
@spans.caption
def describe_spans(frame: pd.DataFrame) -> str:
    compressed = frame[frame["method"] != "full"]
    if compressed.empty:
        return "There is no compressed run; the full cache keeps everything."
    kept = compressed.groupby("span", sort=False)["kept"].mean()
    share = part(float(kept.iloc[0]))
    return contrast(
        kept,
        "Averaged over the runs, most is kept whole of “{most}”, and least of “{least}”.",
        sentence(f"averaged over the runs, {share} of every part is kept whole"),
        sentence(f"averaged over the runs, {share} of “{{only}}” is kept whole"),
        "What is kept of the prompt's parts was not recorded.",
    )


def moment_of(frame: pd.DataFrame) -> str:
    """The step of the cells as a phrase."""
    step = int(frame["step"].iloc[0])
    return "after the prompt" if step == 0 else f"after step {step}"


def _in_grid(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The cells with x and y; one line per run with its x and name (budget, under the method's); one line per span."""
    columns = frame.drop_duplicates("run_id").reset_index(drop=True)
    places = [0.0]
    for before, here in pairwise(columns["row"]):
        places.append(places[-1] + 1 + (GAP if before != here else 0))
    # Budgets, with the method above the first of its own.
    firsts = ~columns["row"].duplicated()
    alone = columns.groupby("row")["run_id"].transform("size") == 1
    names = []
    for line, first, single in zip(columns.itertuples(), firsts, alone, strict=True):
        budget = f"{percent(line.slots)}" if line.column == "its own budget" else line.column
        long = visible(line.row, 16 if single else 18)
        # In smaller letters a long name fits its column whole.
        long = f"<span style='font-size:10px'>{long}</span>" if single and len(line.row) > 12 else long
        names.append(f"<b>{long if first else ' '}</b><br>{budget}")
    columns = columns.assign(x=places, name=names)
    rows = frame.drop_duplicates("span").reset_index(drop=True)
    x = dict(zip(columns["run_id"], places, strict=True))
    y = {name: at for at, name in enumerate(rows["span"])}
    return frame.assign(x=frame["run_id"].map(x), y=frame["span"].map(y)), columns, rows


def _cards(cells: pd.DataFrame, look: dict[str, Any], customdata: list[list[Any]], hover: str) -> go.Bar:
    """A clickable card behind each cell."""
    return go.Bar(
        x=cells["x"],
        y=[HEIGHT] * len(cells),
        base=cells["y"] - HEIGHT / 2,
        width=WIDTH,
        showlegend=False,
        marker=look,
        customdata=customdata,
        hovertemplate=f"{hover}<extra></extra>",
        **no_fading(),
    )


def _strips(cells: pd.DataFrame, theme: palette.Theme) -> list[go.Bar]:
    """The shares kept, merged and dropped from left to right, in the colours and patterns of the board."""
    room = WIDTH - 0.1
    traces = []
    before = np.zeros(len(cells))
    for fate, (name, state, pattern) in palette.FATES.items():
        share = cells[fate].to_numpy(float)
        colour = palette.pick(palette.STATE_COLOURS[state], theme)
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
                    "line": {"width": 0.5, "color": palette.SURFACES[theme]},
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


def _numbers(cells: pd.DataFrame, answers: pd.DataFrame, columns: int, theme: palette.Theme) -> list[dict[str, Any]]:
    """The share kept whole in each cell with the mark of its rule, and the words of the answers, where they fit."""
    pixels = PAGE_PIXELS / columns
    if pixels < NARROW:
        return []
    unit = " %" if pixels >= ROOMY else ""
    written = []
    for cell, colour in zip(cells.itertuples(), _colours(cells, theme), strict=True):
        mark = "" if pd.isna(cell.obeyed) else " ✓" if cell.obeyed else " ✗"
        # With a decimal under 10, so that one sees which cells are under 5.
        digits = 0 if cell.kept == 0 or cell.kept >= 0.0995 else 1
        share = "<0.1" if 0 < cell.kept < 0.0005 else f"{100 * cell.kept:.{digits}f}"
        text = f"{share}{unit if pixels >= 1.5 * ROOMY or not mark else ''}{mark}"
        ground = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        written.append((cell.x, cell.y - 0.13, text, ink_on(ground)))
    for line in answers.itertuples():
        sign = palette.VERDICTS[line.kind][0]
        words = line.words if line.name != "answer" else f"{sign} {line.words}" if pixels >= 1.5 * ROOMY else sign
        written.append((line.x, line.y, html.escape(words, quote=False), INK[theme]))
    return [
        {"x": x, "y": y, "text": text, "showarrow": False, "font": {"size": 12, "color": colour}}
        for x, y, text, colour in written
    ]


def _outlines(cells: pd.DataFrame, theme: palette.Theme) -> list[dict[str, Any]]:
    """Around the largest budget at which a span is dead, seen on every ground."""
    edges = [(palette.SURFACES[theme], 5), (palette.pick(palette.HUES["red"], theme), 2.5)]
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


def _colours(cells: pd.DataFrame, theme: palette.Theme) -> list[str]:
    """#RRGGBB of the share of each cell that is kept whole."""
    shades = colours_at(palette.SEQUENTIAL[theme], cells["kept"].to_numpy(float))
    return ["#{:02X}{:02X}{:02X}".format(*(round(channel) for channel in colour)) for colour in shades]


def cell_words(cell: Any) -> str:
    """Hover text of a cell."""
    shares = ", ".join(f"{percent(getattr(cell, fate))} {name}" for fate, (name, *_) in palette.FATES.items())
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


@spans_by_budget.figure
def draw_spans_by_budget(frame: pd.DataFrame, theme: palette.Theme) -> go.Figure:
    """A panel per span: the share kept whole by the slots that are left after the prompt, a line per method.

    A filled mark is a right answer, an open one another or an unknown one.
    """
    drawn = frame[frame["method"] != "full"]
    parts = drawn.drop_duplicates("span")
    across = min(PANELS, len(parts))
    down = -(-len(parts) // across)
    # Counted from the bottom, so that the first axis is one with a title.
    titles = [f"{visible(span.span, 26).replace('·', ' ')} ({span.tokens:,})" for span in parts.itertuples()]
    by_row = [titles[at : at + across] + [""] * (at + across - len(titles)) for at in range(0, len(titles), across)]
    figure = make_subplots(
        down,
        across,
        subplot_titles=[*chain(*by_row[::-1])],
        start_cell="bottom-left",
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=min(0.3, 0.34 / down),
    )
    styles = palette.run_styles(drawn[["row", "method"]].itertuples(index=False, name=None), theme)
    for place, span in enumerate(parts["span"]):
        at = {"row": down - place // across, "col": place % across + 1}
        for row, style in styles.items():
            line = drawn[(drawn["span"] == span) & (drawn["row"] == row)].sort_values("slots")
            fill = [style.colour if verdict == "right" else palette.SURFACES[theme] for verdict in line["verdict"]]
            figure.add_scatter(
                x=100 * line["slots"],
                y=100 * line["kept"],
                name=row,
                legendgroup=row,
                showlegend=place == 0,
                mode="lines+markers",
                line={"color": style.colour, "dash": style.dash, "width": 1.8},
                marker={"symbol": style.marker, "size": 8, "color": fill, "line": {"color": style.colour, "width": 2}},
                customdata=[[cell.run_id, cell.first, cell_words(cell)] for cell in line.itertuples()],
                hovertemplate="%{customdata[2]}<extra></extra>",
                **at,
                **no_fading(),
            )
    finish(
        figure,
        title=f"What is kept of each part of the prompt {moment_of(frame)}, by budget",
        x="",
        y="",
        theme=theme,
        height=150 + PANEL * down,
    )
    figure.update_xaxes(rangemode="tozero", title_standoff=4).update_yaxes(range=[-6, 106])
    for place in range(max(0, len(parts) - across), len(parts)):  # the last of each column
        at = {"row": down - place // across, "col": place % across + 1}
        figure.update_xaxes(title_text="slots left of the prompt (%)", showticklabels=True, **at)
    figure.update_yaxes(title_text="kept whole (%)", col=1)
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    figure.update_layout(clickmode="event+select", dragmode=False, margin_t=104)
    return figure.update_layout(legend_y=1 + 36 / (PANEL * down))


def shares_of_spans(wall: Wall, spans: Sequence[Span], step: int) -> pd.DataFrame:
    """One row per span: shares of its (layer, KV head, token) after `step`.

    Columns: span, first (token), tokens, kept (a slot of its own that holds nothing else), merged (a slot shared with
    other tokens), dropped (no slot), held (kept or merged) and unreachable (share of its tokens with no slot in any
    layer and head).
    """
    fates = wall.fates(step)
    rows = []
    for span in spans:
        inside = fates[:, span.positions]
        gone = inside == Fate.DROPPED
        kept = float((inside == Fate.KEPT).mean())
        dropped = float(gone.mean())
        rows.append(
            {
                "span": span.label,
                "first": span.first,
                "tokens": inside.shape[1],
                "kept": kept,
                "merged": max(1 - kept - dropped, 0.0),
                "dropped": dropped,
                "held": 1 - dropped,
                "unreachable": float(gone.all(axis=0).mean()),
            }
        )
    return pd.DataFrame(rows)


def spans_by_run(runs: Sequence[Run], walls: Sequence[Wall], spans: Sequence[Span], step: int) -> pd.DataFrame:
    """`shares_of_spans` of each run, methods in the order of runs, the full cache first, large budgets before small.

    Further columns: run_id, label, method, row and column (`places`: method and budget), slots (live slots after the
    prompt, a share of its (layer, head, token)), step, dead (held below `DEAD`, or unreachable 1) and first_dead (the
    largest budget of its method at which the span is dead).
    """
    parts = []
    for run, wall, (row, column) in zip(runs, walls, places(runs), strict=True):
        read = wall.fates(0)
        of_run = (run.record.run_id, run.record.label, run.record.method, row, column, float((read < 2).mean()))
        parts.append(shares_of_spans(wall, spans, step).assign(**dict(zip(OF_RUN, of_run, strict=True)), step=step))
    rows = list(
        dict.fromkeys(
            shares["row"].iloc[0]
            for shares in sorted(parts, key=lambda shares: shares["method"].iloc[0] != FULL.method)
        )
    )
    parts.sort(key=lambda shares: (rows.index(shares["row"].iloc[0]), -shares["slots"].iloc[0]))
    frame = pd.concat(parts, ignore_index=True)
    frame["dead"] = (frame["held"] < DEAD) | (frame["unreachable"] == 1)
    # Where a method loses a part: with one budget there is nothing to compare.
    several = frame.groupby("row")["run_id"].transform("nunique") > 1
    frame["first_dead"] = several & frame["dead"] & (frame.groupby(["row", "span"])["dead"].cumsum() == 1)
    return frame


def why_unknown(run: Run, first: Run) -> str:
    """Why the spans of `first` say nothing of this run's cache, as the rest of a sentence; "" if they do."""
    record = run.record
    if record.level != "full":
        return f"was recorded at level {record.level}, without events"
    if any(problem.startswith(("events", "tokens", "steps")) for problem in run.problems):
        return "lost a part of what it recorded"
    if run is not first:
        ids = (one.tokens.loc[one.tokens["phase"] == "prompt", "id"].to_numpy() for one in (run, first))
        if not np.array_equal(*ids):
            return "has read other tokens"
    return ""
