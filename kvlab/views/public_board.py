"""kvlab's scores beside those of a public board: the same RULER tasks, at the same shares of the cache kept."""

import json
import tomllib
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.answer_match import LEAST_SCORE
from kvlab.common.formatting import join_words, mean_words, model_title
from kvlab.common.intervals import mean_over_groups, rank_correlation
from kvlab.core import FULL, UserError, asset_path, format_spec, parse_spec
from kvlab.views.base import HUES, INK, KEEPS_HEIGHT, QUIET, Theme, finish, number, percent, pick, plural
from kvlab.views.base.view import view
from kvlab.views.scores import sample_note

SHIPPED = "board"
FACTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NEEDED = ("model", "press_name", "query_aware", "configured_ratio", "achieved_ratio")
NO_TASKS = (*NEEDED, "pretty_name", "score_macro13", "press_init_command", "n")
NO_PRESS = "no_press"
LEAST_METHODS = 4  # of three, an interval of a rank correlation says nothing
NEAR = 0.005  # shares that are the same
ZERO_LINES = ("random", "streaming_llm")


@dataclass(frozen=True)
class Board:
    """A board's runs: model, press, label, aware (question in sight), asked and kept (shares), n (prompts of a task),
    note, and the score in each of the `tasks` from 0 to 1.
    """

    rows: pd.DataFrame
    tasks: tuple[str, ...]
    source: str


def read_board(name: str) -> Board:
    """The shipped board, or a FILE.csv of its form with a column n; raises UserError for another file."""
    if name == SHIPPED:
        table = pd.read_csv(asset_path("board/kvpress.csv")).assign(n=FACTS["prompts"])
    elif not Path(name).is_file():
        raise UserError(f"There is no board {name!r}: name {SHIPPED}, which ships with kvlab, or a FILE.csv.")
    else:
        try:
            table = pd.read_csv(name)
        except (ValueError, OSError) as error:  # pandas' errors of parsing are ValueErrors
            raise UserError(f"{name} cannot be read as CSV: {str(error).splitlines()[0]}.") from error
    if lacking := [column for column in NEEDED if column not in table]:
        raise UserError(
            f"{name} lacks {join_words(lacking)}: a board has the columns {', '.join(NEEDED)}, n and tasks."
        )
    if "n" not in table or table["n"].isna().any():
        raise UserError(f"{name} has rows without n: add a column n, the prompts behind each score.")
    tasks = [str(column) for column in table if column not in NO_TASKS]
    try:
        numbers = table[["configured_ratio", "achieved_ratio", "n", *tasks]].astype(float)
        aware = table["query_aware"].astype(str).str.lower().map({"true": True, "false": False})
    except ValueError as error:
        raise UserError(f"{name} has a value that is no number: {error}.") from error
    if aware.isna().any():
        raise UserError(f"{name} has a query_aware that is neither True nor False.")
    kept = 1 - numbers[["configured_ratio", "achieved_ratio"]]
    rows = pd.DataFrame(
        {
            "model": table["model"].astype(str).str.split("/").str[-1],
            "press": table["press_name"].astype(str),
            "label": table.get("pretty_name", table["press_name"]).astype(str),
            "aware": aware.astype(bool),
            "asked": kept["configured_ratio"],
            "kept": kept["achieved_ratio"],
            "n": numbers["n"].astype(int),
        }
    )
    differs = (rows["kept"] - rows["asked"]).abs() > NEAR
    holds = [f"holds {held:.0%} where {asked:.1%} was asked" for held, asked in zip(rows.kept, rows.asked, strict=True)]
    note = pd.Series(np.where(differs, holds, ""))
    if name == SHIPPED:
        # kvpress' PyramidKV gives each layer the same budget, as SnapKV does, if the last layer would get fewer slots
        # than the window: kept tokens / beta < window (`get_layer_budget` of its pyramidkv_press.py).
        settings = table["press_init_command"].astype(str).str.extract(r"window_size=(\d+).*beta=(\d+)").astype(float)
        least = settings[0] * settings[1]
        falls_back = (rows["press"] == "pyramidkv") & (FACTS["tokens"] * rows["asked"] < least)
        note = note.mask(falls_back, pd.Series([f"ran SnapKV: fewer than {slots:,.0f} tokens kept" for slots in least]))
    source = FACTS["source"] if name == SHIPPED else Path(name).name
    return Board(rows.assign(note=note, **numbers[tasks] / 100), tuple(tasks), source)


def beside_board(rows: pd.DataFrame, board: Board) -> pd.DataFrame:
    """Both sides' scores, means over the board's tasks that the models behind `rows` can do.

    Columns: series (model, and of kvlab's rows the tokens of a prompt), is_board, press ("" for a method that the board
    does not have), label, arm (of kvlab's rows the method with its options), aware, asked and kept (shares of the
    cache), score with low and high (kvlab's 95 % interval; the board publishes means), n (prompts), tasks (count) and
    note. The board's rows are of the same question (in sight or not) as kvlab's.

    Raises UserError if no task is in common.
    """
    named = rows.assign(task=rows["task"].str.replace(r"^ruler[_/]", "", regex=True))
    named = named[named["task"].isin(board.tasks)]
    if named.empty:
        wanted = ",".join(f"ruler_{task}" for task in board.tasks[:3])
        raise UserError(
            f"These results have no task of the board: evaluate some, such as "
            f"`kvlab eval --tasks {wanted} --methods snapkv,random --out OUT`."
        )
    full = named[named["method"] == FULL.method]
    able = full.groupby(["model", "length", "task"])["score"].mean() >= LEAST_SCORE
    tasks = [task for task in board.tasks if task in able.index.get_level_values("task") and able[:, :, task].all()]
    if not tasks:
        raise UserError(
            f"The full cache scores at least {LEAST_SCORE:g} in none of these tasks: take tasks that the model "
            f"can do, or a longer evaluation, to hold methods against a board."
        )
    named = named[named["task"].isin(tasks) & ((named["budget_unit"] == "fraction") | (named["method"] == FULL.method))]
    ours = _cells(named, len(tasks))
    theirs = board.rows[board.rows["aware"].isin(ours["aware"].unique()) | (board.rows["press"] == NO_PRESS)]
    found = theirs[["press", "label", "aware", "asked", "kept", "note"]].assign(
        series=theirs["model"],
        is_board=True,
        arm="",
        score=theirs[tasks].mean(axis=1),
        n=theirs["n"] * len(tasks),
        tasks=len(tasks),
    )
    labels = dict(zip(board.rows["press"], board.rows["label"], strict=True))
    ours["label"] = [labels.get(press, arm) for press, arm in zip(ours["press"], ours["arm"], strict=True)]
    return pd.concat([ours, found], ignore_index=True)


def _cells(rows: pd.DataFrame, every: int) -> pd.DataFrame:
    """kvlab's side of `beside_board`; a note where a cell has not `every` task."""
    presses = [(*parse_spec(spec), press) for spec, press in FACTS["presses"].items()]
    lines = []
    by = ["model", "length", "method", "hyper_parameters", "budget", "question_aware"]
    for (model, length, method, options, budget, aware), cell in rows.groupby(by, sort=False):
        chosen = json.loads(options or "{}")
        arm = format_spec(method, chosen)
        is_full = method == FULL.method
        known = [press for name, needed, press in presses if name == method and needed.items() <= chosen.items()]
        # Without the settings of the board's runs it is another method than their press.
        others = arm if any(name == method for name, *_ in presses) else method.replace("-", "_")
        interval = mean_over_groups(cell["score"].tolist(), cell["task"].tolist(), kind="score")
        count = cell["task"].nunique()
        lines.append(
            {
                "series": f"{model_title(model)}, {length:,} tokens",
                "is_board": False,
                "press": NO_PRESS if is_full else (known or [others])[0],
                "arm": arm,
                "aware": aware,
                "asked": 1.0 if is_full else budget,
                "kept": (cell["slots"] / cell["logical_tokens"]).mean(),
                "score": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "n": interval.n,
                "tasks": count,
                "note": "" if count == every else f"{count} of {every} tasks",
            }
        )
    return pd.DataFrame(lines)


def agreements(frame: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of the methods' scores between every two models, at each share of the cache.

    Columns: aware, asked, first, second, ceiling (both are the board's: what can be asked of others), rho with low and
    high (bootstrap over methods), methods (count), why ("" or the sentence why there is none). The ceiling is of the
    methods that kvlab's rows have too, where they are enough. The board's notes are kept in: a run that fell back has a
    rank as well.
    """
    whole = frame["tasks"] == frame["tasks"].max()
    known = frame[whole & (frame["press"] != NO_PRESS)].assign(asked=frame["asked"].round(3))
    known = known.drop_duplicates(["series", "aware", "asked", "press"])
    lines = []
    for (aware, asked), cell in known.groupby(["aware", "asked"], sort=True):
        table = cell.pivot(index="press", columns="series", values="score")
        boards = [name for name in table if cell.loc[cell["series"] == name, "is_board"].all()]
        others = [name for name in table if name not in boards]
        shared = table.dropna()
        for first, second in [*combinations(boards, 2), *((ours, other) for ours in others for other in boards)]:
            is_ceiling = first in boards
            pairs = shared if is_ceiling and len(shared) >= LEAST_METHODS else table[[first, second]].dropna()
            found = None
            why = (
                f"{len(pairs)} methods in common are too few for a rank correlation: evaluate {LEAST_METHODS} or more."
            )
            if len(pairs) >= LEAST_METHODS:
                found = rank_correlation(pairs[first].tolist(), pairs[second].tolist())
                why = "" if found else "All methods score the same, which ranks none: take another budget or task."
            bounds = (found.mean, found.low, found.high) if found else (np.nan, np.nan, np.nan)
            lines.append((aware, asked, first, second, is_ceiling, *bounds, len(pairs), why))
    columns = ["aware", "asked", "first", "second", "ceiling", "rho", "low", "high", "methods", "why"]
    return pd.DataFrame(lines, columns=columns).sort_values(["aware", "asked"], ascending=[True, False], kind="stable")


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
    # Symbol and hue of every model.
    names = frame.drop_duplicates("series").set_index("series")["is_board"]
    theirs, ours = ([str(name) for name in names.index[names == is_board]] for is_board in (True, False))
    looks = {
        name: marks[place % len(marks)]
        for group, marks in ((theirs, MARKS), (ours, OWN_MARKS))
        for place, name in enumerate(group)
    }
    for column, share in enumerate(shares, start=1):
        for series, (symbol, hue) in looks.items():
            here = cells[(cells["series"] == series) & (cells["asked"].round(3) == share)]
            if not here.empty:
                mark = {"symbol": symbol, "size": 10, "color": pick(HUES[hue], theme)}
                _add_marks(figure, here, str(series), mark, column)
            for press, dash in DASHES.items():
                colour = pick(HUES[hue], theme)
                for score in here[here["press"] == press]["score"]:
                    figure.add_vline(x=score, line={"color": colour, "dash": dash, "width": 1.3}, row=1, col=column)
    # Names of the lines, and of open marks if there are any.
    empty = {"x": [None], "y": [None], "hoverinfo": "skip", "row": 1, "col": 1}
    for name, dash in zip(("its random", "its StreamingLLM"), DASHES.values(), strict=True):
        figure.add_scatter(mode="lines", name=name, line={"color": QUIET[theme], "dash": dash}, **empty)
    if cells["note"].any():
        mark = {"symbol": "circle-open", "size": 10, "color": QUIET[theme]}
        figure.add_scatter(mode="markers", name="ran something else, see the note", marker=mark, **empty)
    measured = cells[~cells["is_board"]]
    x = f"score (ours: {sample_note(measured.assign(prompts=measured['n']))})"
    finish(figure, title="", x=x, y="", theme=theme, height=ROW_PIXELS * len(order) + 190)
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


def _add_marks(figure: go.Figure, cells: pd.DataFrame, series: str, mark: dict[str, object], column: int) -> None:
    hover = []
    for line in cells.to_dict("records"):
        if line["is_board"]:
            score = f"{number(line['score'])} (n = {line['n']:,})"
        else:
            score = mean_words(line["score"], line["low"], line["high"], line["n"])
        held = f"asked {line['asked']:.1%}, held {line['kept']:.1%}"
        words = [line["arm"] or line["label"], score, held, f"question {AWARE[line['aware']]}", line["note"]]
        hover.append(["<br>".join(filter(None, words))])
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
        customdata=hover,
        hovertemplate=f"{series}<br>%{{customdata[0]}}<extra></extra>",
        row=1,
        col=column,
    )


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
