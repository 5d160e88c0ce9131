"""The board: methods by budgets, each cell with verdict, bytes, KL and the fate of every token of the fact."""

import html
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.trace.catalogue import list_runs
from kvlab.trace.reader import Run, open_run
from kvlab.trace.user_labels import load_labels
from kvlab.views.base import words
from kvlab.views.base.head_map import head_map
from kvlab.views.base.lines import hatch
from kvlab.views.base.palette import FATES, HUES, STATE_COLOURS, SURFACES, VERDICTS, Theme, fate_scale, mix, pick
from kvlab.views.base.template import INK, KEEPS_HEIGHT, NO_GRID, QUIET, finish, no_fading
from kvlab.views.base.view import view
from kvlab.views.frames import board as frames
from kvlab.views.frames.board import OWN_BUDGET
from kvlab.views.frames.facts import fact_fates, fate_shares
from kvlab.views.frames.verdict import MOST_CHARACTERS

WIDTH = 0.94  # of a cell, as a share of the column
# height and bottom of the strip, in rows below the row's middle
STRIP = 0.36
FOOT = 0.42
PAGE_PIXELS = 400  # for all cells together, in a window of 1,280 pixels at 150 %
ONE_LINE = 1  # with more columns, cells put bytes on their own line
MOST_TOKENS = 48
MOST_LABELS = 45
# the same on a slide, and the height of a row, of which ten fit on one
SLIDE_PIXELS = 1_000
SLIDE_ROW = 38
SLIDE_LETTERS = 15, 13


class StripArea(NamedTuple):
    """Where the strip is in a cell: left end in columns from the middle; height and bottom as `STRIP` and `FOOT`."""

    left: float
    height: float
    bottom: float


# the words
BELOW = StripArea(-0.45, STRIP, FOOT)
BESIDE = StripArea(0.13, 0.76, 0.38)


@view("board", title="Is the answer still right?", page="result")
def answers_of_runs(runs: Sequence[Run]) -> pd.DataFrame:
    """`frames.board.board`; raises UserError if the comparison has no expected answer."""
    check = frames.check_answer(runs, _expected(runs))
    return frames.board(runs, check, frames.verdicts(runs, check))


def _expected(runs: Sequence[Run]) -> frames.ExpectedAnswer:
    name = runs[0].record.comparison_id
    expected = frames.expected_answer(runs, load_labels(runs[0].path.parent, name))
    if expected is None:
        raise UserError(
            f"{name} has no expected answer: enter one on the page Result, or give `answer` to the comparison."
        )
    return expected


@answers_of_runs.figure
def board(frame: pd.DataFrame, theme: Theme = "light", slide: bool = False) -> go.Figure:
    """Methods by budgets from `views.frames.board.board`; customdata of every mark begins with the run id.

    On a `slide`, which is wide and low, the strip is beside the words of a cell instead of below them.
    """
    cells, rows, columns = in_grid(frame.drop_duplicates("run_id"))
    # Where there is no room for it, what restores an answer is in the hover text alone.
    has_room = "restored" in cells and len(columns) <= ONE_LINE
    written = cells.assign(restored=cells["restored"] if has_room else "")
    lines = 2 if len(columns) <= ONE_LINE and not written["restored"].any() else 3
    area, row_height, annotate = (BESIDE, SLIDE_ROW, _slide_words) if slide else (BELOW, 54 + 18 * lines, _words)
    # Of the fact at most `MOST_TOKENS` columns per run (means over neighbours), with position and width in the cell.
    tokens = frame[frame["position"].notna()]
    place = tokens.groupby("run_id").cumcount()
    count = int(place.max()) + 1 if len(tokens) else 1
    block = (place * min(count, MOST_TOKENS)) // count
    means = {fate: (fate, "mean") for fate in FATES}
    joined = {"position": ("position", "min"), "text": ("text", lambda texts: "".join(texts))}
    known = tokens.assign(block=block).groupby(["run_id", "block"], sort=False).agg(**means, **joined).reset_index()
    step = (0.45 - area.left) / min(count, MOST_TOKENS)
    known = known.assign(offset=area.left + step * (known["block"] + 0.5), wide=0.92 * step)
    figure = go.Figure([*_grounds(cells, theme), *_strips(known, cells, area, theme)])
    lay_out(figure, "Is the answer still right?", cells, rows, columns, len(rows) * row_height, 168, theme)
    figure.update_layout(annotations=annotate(written, len(columns), theme))
    # The fact's tokens under each column, if there is room; an axis needs a trace to be drawn.
    first = known[known["run_id"] == known["run_id"].iloc[0]] if len(known) else known
    if not len(first) or len(first) * len(columns) > MOST_LABELS or len(first) == MOST_TOKENS:
        return figure
    figure.add_scatter(x=[None], y=[None], xaxis="x2", showlegend=False, hoverinfo="skip")
    texts = [words.visible(text.strip() or text, 12) for text in first["text"]]
    return figure.update_layout(
        xaxis2={
            "range": [-0.5, len(columns) - 0.5],
            **NO_GRID,
            "overlaying": "x",
            "side": "bottom",
            "tickangle": -90,
            "tickfont": {"color": QUIET[theme], "size": 11},
            "tickvals": [column + offset for column in range(len(columns)) for offset in first["offset"]],
            "ticktext": texts * len(columns),
            "automargin": True,
            "showline": False,
        }
    )


def lay_out(
    figure: go.Figure,
    title: str,
    cells: pd.DataFrame,
    rows: list[str],
    columns: list[str],
    height: int,
    around: int,
    theme: Theme,
    legend: bool = True,
) -> None:
    """Axes of a board of clickable cells, of this height in pixels besides what is around them."""
    finish(figure, title=title, x="budget", y="method", theme=theme, height=height + around, legend=legend)
    figure.update_layout(
        barmode="overlay",
        hovermode="closest",
        clickmode="event+select",
        dragmode=False,
        margin_b=12,
        margin_t=104,
        legend={"y": 1 + 46 / height, "itemclick": False, "itemdoubleclick": False},
    )
    look = {"tickfont": {"color": INK[theme], "size": 13}, **NO_GRID}
    across = list(range(len(columns)))
    figure.update_xaxes(side="top", tickvals=across, ticktext=columns, range=[-0.5, len(columns) - 0.5], **look)
    figure.update_yaxes(range=[len(rows) - 0.5, -0.5], tickvals=list(range(len(rows))), **look)
    without_budget = set(cells.loc[cells["column"] == OWN_BUDGET, "row"])
    names = [f"{row} ({OWN_BUDGET})" if row in without_budget else row for row in rows]
    figure.update_yaxes(ticktext=["<br>".join(textwrap.wrap(name, 16)) for name in names])
    figure.layout.meta = {**(figure.layout.meta or {}), KEEPS_HEIGHT: True}


def in_grid(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str], list[str]]:
    """The cells with x, y and span in columns; the row names; the column names.

    A method without a budget gets its own row at the bottom, across all budgets.
    """
    without_budget = cells["column"] == OWN_BUDGET
    rows = pd.concat([cells.loc[~without_budget, "row"], cells.loc[without_budget, "row"]]).drop_duplicates().tolist()
    # Budgets by the median live bytes of their runs.
    sizes = cells["live_ratio"].astype(float).fillna(np.inf)[~without_budget].groupby(cells["column"], sort=False)
    columns = sizes.median().sort_values().index.tolist() or [OWN_BUDGET]
    spans = np.where(without_budget, len(columns), 1)
    middle = (len(columns) - 1) / 2
    x = [middle if alone else columns.index(name) for name, alone in zip(cells["column"], without_budget, strict=True)]
    return cells.assign(x=x, y=[rows.index(name) for name in cells["row"]], span=spans), rows, columns


@answers_of_runs.caption
def caption_board(frame: pd.DataFrame) -> str:
    """Which runs answer right, and which keep most and least of the fact in slots of its own."""
    cells = frame.drop_duplicates("run_id")
    if cells.empty:
        return "There is no compressed run yet."
    right = cells.loc[cells["verdict"] == "right", "label"].tolist()
    text = f"the answer is right in {words.some_of(len(right), len(cells), 'run')}"
    kept = frame.groupby("label", sort=False)["kept"].mean().astype(float).dropna()
    if kept.empty:
        return words.sentence(text)
    share = words.part(float(kept.iloc[0]))
    least = "nothing of it by {least}" if kept.min() <= words.EXACT else "the smallest by {least}"
    rest = words.contrast(
        kept,
        f"the largest part is kept unmerged by {{most}}, {least}",
        f"every run keeps {share} unmerged",
        f"{{only}} keeps {share} unmerged",
    )
    if "moment" in frame:
        when = frame["moment"].iloc[0]
    else:
        when = "when the answer was written" if frame["kl_answer"].notna().any() else "at the end of the prompt"
    return words.sentence(f"{text}; {when}, of the text it needs, {rest}")


@view("fact_by_head", title="Fate of the fact's tokens by head", needs="full", page="result")
def fact_of_run(run: Run) -> pd.DataFrame:
    """The fate of the fact in every head when the answer was written: `with_reader`.

    Raises UserError if the comparison has no expected answer, or the fact behind it is not known.
    """
    root = run.path.parent
    entries = list_runs(root, comparison_id=run.record.comparison_id)
    runs = [open_run(root / entry.run_id) for entry in entries]
    check = frames.check_answer(runs, _expected(runs))
    if not len(check.positions):
        raise UserError(
            f"{run.record.comparison_id} does not say where its prompt has the answer: mark it on the page Result."
        )
    shares = fate_shares(fact_fates(run, check.positions, check.step), "layer", "head")
    return with_reader(shares, frames.readers(runs, check), check.moment)


def with_reader(shares: pd.DataFrame, readers: pd.DataFrame, moment: str) -> pd.DataFrame:
    """`facts.fate_shares`; its `attrs` have the head that reads the fact (of `readers`, None if unknown), and when."""
    reader = readers.iloc[0].to_dict() if len(readers) else None
    shares.attrs |= {"reader": reader, "moment": moment}
    return shares


@fact_of_run.figure
def fact_by_head(frame: pd.DataFrame, theme: Theme, run: Run, fate: str = "kept") -> go.Figure:
    """Share of the fact's tokens with this fate by layer and KV head; the head that reads the fact is outlined."""
    reader = frame.attrs["reader"]
    table = frame.pivot(index="layer", columns="head", values=fate)
    shares = np.array([["" if pd.isna(share) else f"{share:.0%}" for share in row] for row in table.to_numpy()], object)
    return head_map(
        table,
        f"{run.record.label}: fate of the fact's tokens by head",
        theme,
        bar=f"share {FATES[fate][0]}",
        hover=": %{z:.0%}",
        colours=fate_scale(fate, theme),
        bar_options={"tickformat": ".0%"},
        focus=None if reader is None else (int(reader["layer"]), int(reader["head"])),
        words=shares,
    )


@fact_of_run.caption
def describe_fact(frame: pd.DataFrame) -> str:
    """What is left of the fact in the head that reads it, or in all heads."""
    reader = frame.attrs["reader"]
    if reader is not None:
        here = frame[(frame["layer"] == int(reader["layer"])) & (frame["head"] == int(reader["head"]))]
        if len(here):
            share = words.part(1 - float(here["dropped"].iloc[0]))
            return f"The head that reads the needed text most still holds {share} of it."
    held = f"over all heads, {words.part(1 - float(frame['dropped'].mean()))} of the needed text is still held"
    if reader is None:
        return words.sentence(
            f"{held}; to know which head reads it, the full cache must answer, recorded at level full"
        )
    return words.sentence(held)


def _grounds(cells: pd.DataFrame, theme: Theme) -> list[go.Bar]:
    """A tinted card behind each cell, clickable."""
    traces = []
    for kind, (_, hue) in VERDICTS.items():
        here = cells[cells["verdict"] == kind]
        if here.empty:
            continue
        colour = pick(HUES[hue], theme)
        hovers = []
        for line in here.itertuples():
            share = "" if pd.isna(line.live_ratio) else f", {words.percent(line.live_ratio)} of the full cache's"
            known = pd.notna(getattr(line, "over_budget", None))
            above = f", {excess_text(line.over_budget)} over the budget" if known else ""
            kls = [
                "not measured" if pd.isna(kl) else f"{words.number(kl)} nats per token"
                for kl in (line.kl_answer, line.mean_kl)
            ]
            size = "not recorded" if pd.isna(line.live_bytes) else words.byte_size(line.live_bytes)
            back = getattr(line, "restored", "")
            wrote = f"wrote {_said(line.wrote, MOST_CHARACTERS)}" if line.wrote else "wrote nothing but spaces"
            parts = [
                f"<b>{words.visible(line.label, 60)}</b>: {html.escape(verdict_text(line), quote=False)}",
                html.escape(wrote, quote=False),
                f"live bytes {size}{share}{above}",
                f"KL on the answer {kls[0]}, on all {kls[1]}",
                *([back] if back else []),
            ]
            hovers.append([line.run_id, "<br>".join(parts).replace("·", " ")])
        traces.append(
            go.Bar(
                x=here["x"],
                y=[WIDTH] * len(here),
                base=here["y"] - WIDTH / 2,
                width=here["span"] - 1 + WIDTH,
                showlegend=False,
                marker={"color": mix(colour, SURFACES[theme], 0.86), "line": {"color": colour, "width": 1.5}},
                customdata=hovers,
                hovertemplate="%{customdata[1]}<extra></extra>",
                **no_fading(),
            )
        )
    return traces


def _strips(known: pd.DataFrame, cells: pd.DataFrame, area: StripArea, theme: Theme) -> list[go.Bar]:
    """Three stacked bars per token: shares of heads that kept, merged and dropped it."""
    known = known.merge(cells[["run_id", "x", "y", "span"]], on="run_id")
    left = known["x"] - (known["span"] - 1) / 2  # a cell across all columns aligns with the first column
    before = np.zeros(len(known))
    traces = []
    for fate, (name, state, pattern) in FATES.items():
        share = known[fate].to_numpy(float)
        colour = pick(STATE_COLOURS[state], theme)
        look = {"color": colour, "pattern": hatch(pattern, colour, theme, size=4), "line": {"width": 0}}
        hovers = []
        for line in known.itertuples():
            shares = ", ".join(f"{getattr(line, one):.0%} {text}" for one, (text, *_) in FATES.items())
            hovers.append([line.run_id, f"{words.visible(line.text, 40)} (token {line.position}): {shares} of heads"])
        traces.append(
            go.Bar(
                x=left + known["offset"],
                y=-area.height * share,
                base=known["y"] + area.bottom - area.height * before,
                width=known["wide"],
                name=name,
                customdata=hovers,
                hovertemplate="%{customdata[1]}<extra></extra>",
                marker=look,
                **no_fading(),
            )
        )
        before += share
    return traces


def _words(cells: pd.DataFrame, columns: int, theme: Theme) -> list[dict[str, Any]]:
    """The text in each cell: verdict, what restores a lost answer (`restored`), live bytes, and the two KLs."""
    verdicts = []
    sizes = []
    closeness = []
    for line in cells.itertuples():
        room = int(line.span * PAGE_PIXELS / columns / 7.5)
        sign = VERDICTS[line.verdict][0]
        size = bytes_text(line, room)
        here = room - len("✓ ")
        verdict = verdict_text(line, max(4, here - len(line.verdict) - 2))
        # Symbol and colour already show the kind, so a narrow cell shows what was written.
        shorter = (verdict, verdict_text(line, max(4, here)).split(": ", 1)[-1], line.verdict)
        fitting = next((shown for shown in shorter if len(shown) <= here), "")
        verdicts.append(f"<b>{sign} {html.escape(fitting, quote=False)}</b>")
        sizes.append(size)  # the hover text has everything
        distances = closeness_text(line, columns)
        beside = len(size) + 2 if columns <= ONE_LINE else 0
        closeness.append(distances if len(distances) + beside <= room * 1.2 else "")
    half = cells["span"] / 2 - 0.06
    left = cells["x"] - half
    right = cells["x"] + half
    y = cells["y"]
    colours = [mix(pick(HUES[VERDICTS[kind][1]], theme), INK[theme], 0.3) for kind in cells["verdict"]]
    # Heights of verdict, size, KLs and what restores the answer; one column has its sizes beside the KLs.
    heights = (-0.36, -0.2, -0.04, 0.0)
    if columns <= ONE_LINE:
        heights = (-0.36, -0.2, -0.2, -0.04) if cells["restored"].any() else (-0.31, -0.09, -0.09, 0.0)
    first, third, second, fourth = heights
    size_at = (right, "right") if columns <= ONE_LINE else (left, "left")
    quiet = [INK[theme]] * len(cells)
    return [
        *_texts(left, y + first, "left", verdicts, colours, 13),
        *_texts(size_at[0], y + third, size_at[1], sizes, quiet, 12),
        *_texts(left, y + second, "left", closeness, quiet, 12),
        *_texts(left, y + fourth, "left", cells["restored"].tolist(), quiet, 12),
    ]


def _slide_words(cells: pd.DataFrame, columns: int, theme: Theme) -> list[dict[str, Any]]:
    """The text left of the strip: the verdict, and in a second line what fits of KLs, bytes and what restores it."""
    verdicts = []
    lines = []
    for line in cells.itertuples():
        pixels = SLIDE_PIXELS * (line.span - 0.45 + BESIDE.left) / columns
        sign = VERDICTS[line.verdict][0]
        here = int(pixels / 8.5) - len("✓ ")
        verdict = verdict_text(line, max(4, here - len(line.verdict) - 2))
        verdicts.append(f"<b>{sign} {html.escape(verdict if len(verdict) <= here else line.verdict, quote=False)}</b>")
        room = int(pixels / 6.8)
        shown = ""
        closeness = closeness_text(line, columns)
        for addition in (closeness, bytes_text(line, room - len(closeness) - len(" · ")), line.restored):
            longer = " · ".join(filter(None, (shown, addition)))
            shown = longer if len(longer) <= room else shown
        lines.append(shown)
    left = cells["x"] - cells["span"] / 2 + (1 - WIDTH) / 2 + 0.01 * columns
    colours = [mix(pick(HUES[VERDICTS[kind][1]], theme), INK[theme], 0.3) for kind in cells["verdict"]]
    first, second = SLIDE_LETTERS
    return [
        *_texts(left, cells["y"] - 0.2, "left", verdicts, colours, first),
        *_texts(left, cells["y"] + 0.22, "left", lines, [INK[theme]] * len(cells), second),
    ]


def _texts(
    x: pd.Series, y: pd.Series, anchor: str, texts: list[str], colours: list[str], size: int
) -> list[dict[str, Any]]:
    """Annotations, because plotly fades the text of traces on click."""
    return [
        {
            "x": across,
            "y": down,
            "text": text,
            "xanchor": anchor,
            "showarrow": False,
            "font": {"size": size, "color": colour},
        }
        for across, down, text, colour in zip(x, y, texts, colours, strict=True)
        if text
    ]


# with more columns than these, cells shorten the KLs, and show one KL only
ROOMY = 2
CROWDED = 4


def bytes_text(line: Any, limit: int = 1000) -> str:
    """Live bytes with their excess over the budget, or their share of the full cache's if there is no budget.

    Texts longer than `limit` characters are shortened to the bytes alone, or to ""; "" if not recorded.
    """
    if pd.isna(line.live_bytes):
        return ""
    size = words.byte_size(line.live_bytes)
    above = getattr(line, "over_budget", None)
    if above is not None and pd.notna(above):
        longer = f"{size} ({excess_text(above)})"
    else:
        longer = size if pd.isna(line.live_ratio) else f"{size} ({words.number(100 * line.live_ratio, 2)} % of full)"
    return next((shown for shown in (longer, size) if len(shown) <= limit), "")


def excess_text(share: float) -> str:
    """Excess over the budget, such as `+14 %`."""
    return f"{'+' if share >= 0 else ''}{words.number(100 * share, 2)} %"


def verdict_text(line: Any, limit: int = 40) -> str:
    """A verdict as plain text, such as `nearly: 4 for 3` or `wrong: … 12.`

    Quotes at most `limit` characters of what was written.
    """
    if line.verdict == "right":
        return f"right, from token {line.at + 1}" if line.late else "right"
    if line.verdict == "nearly":
        if not line.wrong:
            return f"nearly: stops before {_said(line.expected, limit)}"
        if not line.expected:
            return f"nearly: goes on with {_said(line.wrong, limit)}"
        return f"nearly: {_said(line.wrong, limit)} for {_said(line.expected, limit)}"
    if line.verdict == "wrong":
        return f"wrong: {_said(line.wrote, limit)}" if line.wrote else "wrong: only spaces"
    return "not finished"


def closeness_text(line: Any, columns: int) -> str:
    """The two KLs; without the first, the second alone."""
    if pd.isna(line.mean_kl):
        return ""
    everywhere = words.number(line.mean_kl, 2)
    if pd.isna(line.kl_answer):
        return f"KL {everywhere} all" if columns <= CROWDED else ""
    here = words.number(line.kl_answer, 2)
    if columns > CROWDED:
        return f"KL {here}"
    return f"KL {here} answer · {everywhere} all" if columns <= ROOMY else f"KL {here} | {everywhere}"


def _said(text: str, limit: int) -> str:
    """A token or words without leading space."""
    return words.token_text(text.strip(), limit).replace("·", " ") if text.strip() else "a space"
