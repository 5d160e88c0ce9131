"""kvlab's scores beside those of a public board, at the same shares of the cache kept."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import join_words, mean_words
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.template import INK, KEEPS_HEIGHT, QUIET, finish
from kvlab.views.base.view import view
from kvlab.views.base.words import number, percent, plural
from kvlab.views.frames.public_board import NO_PRESS, SHIPPED, ZERO_LINES, agreements, beside_board, read_board

ROW_PIXELS = 24
MARKS = (("circle", "blue"), ("square", "orange"), ("triangle-up", "gold"))  # of the board's models
OWN_MARKS = (("diamond", "purple"), ("star", "green"), ("cross", "wine"))  # of kvlab's
DASHES = dict(zip(ZERO_LINES, ("dot", "dash"), strict=True))
AWARE = {True: "in sight", False: "not in sight"}


@view("public_board", title="Beside a public board", page="quality")
def public_board(rows: pd.DataFrame, board: str = SHIPPED) -> pd.DataFrame:
    """`frames.public_board.beside_board`; `board`: the shipped one, or a FILE.csv of its form."""
    read = read_board(board)
    found = beside_board(rows, read)
    return found.assign(source=found["is_board"].map({True: read.source, False: "kvlab"}))


@public_board.figure
def scores_beside_board(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """A panel for each share: methods down, a mark for each model, its random and StreamingLLM as lines."""
    cells = frame[frame["press"] != NO_PRESS]
    own_shares = cells.loc[~cells["is_board"], "asked"].round(3).unique()
    shares = sorted(own_shares, reverse=True)
    cells = cells[cells["asked"].round(3).isin(shares)]
    several = cells["aware"].nunique() > 1
    row = cells["label"] + (cells["aware"].map({True: " (question in sight)", False: ""}) if several else "")
    cells = cells.assign(row=row)
    order = cells.groupby("row")["score"].mean().sort_values().index.tolist()
    figure = make_subplots(1, len(shares), shared_yaxes=True, horizontal_spacing=0.02)
    looks = _looks(frame)
    for column, share in enumerate(shares, start=1):
        for series, (symbol, hue) in looks.items():
            here = cells[(cells["series"] == series) & (cells["asked"].round(3) == share)]
            if not here.empty:
                mark = {"symbol": symbol, "size": 10, "color": pick(HUES[hue], theme)}
                _add_marks(figure, here, str(series), mark, column)
            for press, dash in DASHES.items():
                _add_line(figure, here[here["press"] == press], dash, pick(HUES[hue], theme), column)
    _add_legend(figure, bool(cells["note"].any()), theme)
    finish(figure, title="", x="score", y="", theme=theme, height=ROW_PIXELS * len(order) + 190)
    figure.update_xaxes(range=[-0.06, 1.06], tickvals=[0, 0.5, 1], tickformat=".2~f", zeroline=False)
    figure.update_yaxes(categoryorder="array", categoryarray=order, ticks="", zeroline=False)
    figure.update_layout(title_text="Beside a public board", legend_y=1 + 50 / (ROW_PIXELS * len(order)), margin_t=130)
    figure.update_layout(margin_b=90, hovermode="closest", meta={**(figure.layout.meta or {}), KEEPS_HEIGHT: True})
    look = {"xref": "paper", "yref": "paper", "showarrow": False}
    for column, share in enumerate(shares):
        at = figure.layout[f"xaxis{column + 1 if column else ''}"].domain
        named = f"<b>{100 * share:g} % kept</b>"
        font = {"size": 13, "color": INK[theme]}
        figure.add_annotation(text=named, x=sum(at) / 2, xanchor="center", y=1, yanchor="bottom", font=font, **look)
    sources = [name for name in frame["source"].unique() if name != "kvlab"]
    font = {"size": 11, "color": QUIET[theme]}
    figure.add_annotation(text="; ".join(sources), x=0, y=0, yshift=-64, xanchor="left", font=font, **look)
    return figure


def _looks(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Symbol and hue of every model."""
    names = frame.drop_duplicates("series").set_index("series")["is_board"]
    theirs, ours = ([str(name) for name in names.index[names == is_board]] for is_board in (True, False))
    return {
        name: marks[place % len(marks)]
        for group, marks in ((theirs, MARKS), (ours, OWN_MARKS))
        for place, name in enumerate(group)
    }


def _add_marks(figure: go.Figure, cells: pd.DataFrame, series: str, mark: dict[str, object], column: int) -> None:
    told = []
    for line in cells.to_dict("records"):
        if line["is_board"]:
            score = f"{number(line['score'])} (n = {line['n']:,})"
        else:
            score = mean_words(line["score"], line["low"], line["high"], line["n"])
        held = f"asked {line['asked']:.1%}, held {line['kept']:.1%}"
        words = [line["arm"] or line["label"], score, held, f"question {AWARE[line['aware']]}", line["note"]]
        told.append(["<br>".join(filter(None, words))])
    # The board publishes means without intervals.
    bars = {"symmetric": False, "array": cells["high"] - cells["score"], "arrayminus": cells["score"] - cells["low"]}
    figure.add_scatter(
        x=cells["score"],
        y=cells["row"],
        name=series,
        legendgroup=series,
        showlegend=series not in {trace.name for trace in figure.data},
        mode="markers",
        marker=mark | {"symbol": [f"{mark['symbol']}-open" if note else mark["symbol"] for note in cells["note"]]},
        error_x={"type": "data", "thickness": 1.5, "width": 3, **bars} if cells["low"].notna().any() else None,
        customdata=told,
        hovertemplate=f"{series}<br>%{{customdata[0]}}<extra></extra>",
        row=1,
        col=column,
    )


def _add_line(figure: go.Figure, cells: pd.DataFrame, dash: str, colour: str, column: int) -> None:
    for score in cells["score"]:
        figure.add_vline(x=score, line={"color": colour, "dash": dash, "width": 1.3}, row=1, col=column)


def _add_legend(figure: go.Figure, has_notes: bool, theme: Theme) -> None:
    """Names of the lines, and of open marks if there are any."""
    look = {"x": [None], "y": [None], "hoverinfo": "skip", "row": 1, "col": 1}
    for name, dash in zip(("its random", "its StreamingLLM"), DASHES.values(), strict=True):
        figure.add_scatter(mode="lines", name=name, line={"color": QUIET[theme], "dash": dash}, **look)
    if has_notes:
        mark = {"symbol": "circle-open", "size": 10, "color": QUIET[theme]}
        figure.add_scatter(mode="markers", name="ran something else, see the note", marker=mark, **look)


@public_board.caption
def describe_public_board(frame: pd.DataFrame) -> str:
    """Whether the methods' order is the board's, beside how far the board's own models agree."""
    table = agreements(frame).dropna(subset="rho")
    ours = table[~table["ceiling"].astype(bool)]
    tasks = plural(int(frame["tasks"].max()), "task")
    if ours.empty:
        return f"Too few methods are in common with the board to compare their order over {tasks}."
    asked = float(ours["asked"].min())
    shown = table[table["asked"] == asked]
    ceiling = shown.loc[shown["ceiling"].astype(bool), "rho"]
    words = [
        f"{line.rho:.2f} with {line.second} ({line.low:.2f} to {line.high:.2f}, {line.methods} methods)"
        for line in ours[ours["asked"] == asked].itertuples()
    ]
    most = f"; the board's models agree with each other at {ceiling.iloc[0]:.2f}" if len(ceiling) else ""
    return f"At {percent(asked)} kept the order of the methods over {tasks} agrees at {join_words(words)}{most}."
