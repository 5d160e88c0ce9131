"""The board of a batch: prompts answered right per cell, with intervals, and mean bytes and KL."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import in_range, mean_words, prompts, range_words
from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.base.lines import hatch
from kvlab.views.base.palette import FATES, HUES, SEQUENTIAL, STATE_COLOURS, SURFACES, Theme, mix, pick
from kvlab.views.base.provenance import of_batch
from kvlab.views.base.template import INK, QUIET, no_fading
from kvlab.views.base.view import view
from kvlab.views.base.words import byte_size, contrast, number, often, percent, plural, visible
from kvlab.views.board import bytes_text, in_grid, lay_out
from kvlab.views.frames import repeats as frames
from kvlab.views.frames.repeats import Batch, compare_with_best
from kvlab.views.frames.trade_off import at_budget
from kvlab.views.frames.verdict import KINDS, NO_REFERENCE

# of a cell; height of the bar and its offset below the row's middle
WIDTH = 0.94
BAR = 0.1
FOOT = 0.15
# the same for the strip of the fact's fates
STRIP = 0.13
STRIP_FOOT = 0.35
SPAN = 0.88  # width of a 100 % share, relative to the cell
SIZE_LIMIT = 10  # characters of the bytes text if there are several columns
ROOMY = 3  # with more columns, cells show the share only


@view("repeats", title="How often is the answer still right?", page="result")
def answers_of_batch(runs: Sequence[Run]) -> pd.DataFrame:
    """`frames.repeats.batch_prompts` of the runs' batch; raises UserError without a batch, and without answers."""
    record = runs[0].record
    if record.repeat is None:
        raise UserError(
            f"{record.comparison_id} is of one prompt: `kvlab compare --repeats 10` records ten, each with a needle."
        )
    table = frames.batch_prompts(runs[0].path.parent, record.repeat.batch)
    if not frames.build_batch([table]).is_asked:
        raise UserError(f"The prompts of {record.repeat.batch} have no answers: record them with a column `answer`.")
    table.attrs["source"] = of_batch(record.repeat.batch, table["number"].nunique())
    return table


@answers_of_batch.caption
def describe_answers(frame: pd.DataFrame, budget: str = "") -> str:
    batch = frames.build_batch([frame])
    return caption_board(replace(batch, cells=at_budget(batch.cells, budget)))


@answers_of_batch.figure
def board(frame: pd.DataFrame, theme: Theme = "light", budget: str = "") -> go.Figure:
    """Methods by budgets (`views.frames.repeats.cells`); customdata of a mark begins with row and column."""
    placed, rows, columns = in_grid(at_budget(frames.cells(frame), budget))
    fates = _fates(placed, theme)
    # A card behind each cell, tinted by the share of right answers.
    tint = pick(HUES["blue"], theme)
    shares = placed["share"].astype(float).fillna(0.0)
    cards = go.Bar(
        x=placed["x"],
        y=[WIDTH] * len(placed),
        base=placed["y"] - WIDTH / 2,
        width=placed["span"] - 1 + WIDTH,
        showlegend=False,
        marker={
            "color": [mix(tint, SURFACES[theme], 0.97 - 0.37 * share) for share in shares],
            "line": {"color": mix(tint, SURFACES[theme], 0.5), "width": 1},
        },
        customdata=[[row.row, row.column, _told(row)] for row in placed.itertuples()],
        hovertemplate="%{customdata[2]}<extra></extra>",
        **no_fading(),
    )
    figure = go.Figure([cards, *_bars(placed, theme), *fates])
    title = "How often is the answer still right?"
    height = 96 * len(rows)
    lay_out(figure, title, placed, rows, columns, height, 148, theme, legend=bool(fates))
    # Right of n, and if there is room the interval, the live bytes and the two KLs.
    notes = []
    for row in placed.itertuples():
        main = f"<b>{row.right} of {row.n}</b> right" if row.n else "not finished"
        left = row.x - row.span / 2 + 0.06
        right = row.x + row.span / 2 - 0.06
        if row.n > 1 and len(columns) <= ROOMY:
            main += f", {100 * row.share_low:.0f} to {100 * row.share_high:.0f} %"
        notes.append((left, row.y - 0.33, "left", main, 13))
        if len(columns) <= ROOMY:
            size = bytes_text(row, SIZE_LIMIT if len(columns) > row.span else 1000)
            here = "" if pd.isna(row.kl_answer) else f"{number(row.kl_answer, 2)} answer · "
            distances = "" if pd.isna(row.mean_kl) else f"KL {here}{number(row.mean_kl, 2)} all"
            notes.append((right, row.y - 0.33, "right", size, 12))
            notes.append((left, row.y - 0.11, "left", distances, 12))
    return figure.update_layout(
        annotations=[
            {
                "x": x,
                "y": y,
                "text": text,
                "xanchor": anchor,
                "showarrow": False,
                "font": {"size": size, "color": INK[theme]},
            }
            for x, y, anchor, text, size in notes
            if text
        ]
    )


def caption_board(batch: Batch) -> str:
    """The runs that are right most and least often."""
    cells = batch.cells[batch.cells["n"] > 0]
    shares = cells.set_index("label")["share"]
    if shares.empty:
        return "No prompt with an answer has finished yet."
    how = often(float(shares.iloc[0]))
    found = contrast(
        shares,
        "The answer is right most often with {most}, and least often with {least}",
        f"All runs alike: the answer is {how} right",
        f"The answer is {how} right with {{only}}",
    )
    fewest = cells["n"].min()
    most = cells["n"].max()
    over = plural(most, "prompt") if fewest == most else f"{fewest} to {most} prompts"
    beyond = f" (of {batch.count} requested)" if most < batch.count else ""
    hint = "" if (cells["traced"] > 0).any() else "; record at level full to see the fate of the fact"
    return f"{found}, over {over}{beyond}{hint}."


def caption_references(batch: Batch) -> str:
    """On how many prompts the full cache answers, and a warning with the numbers of the others."""
    known = batch.references[batch.references["reference"].isin(KINDS[:3])]
    failed = known.loc[known["reference"] != "right", "number"]
    text = f"The full cache itself answers {len(known) - len(failed)} of {plural(len(known), 'prompt')}."
    if failed.empty:
        return text
    where = "every prompt" if len(failed) == len(known) else f"prompt {', '.join(map(str, failed))}"
    return f"{text} On {where} {NO_REFERENCE}."


def rank_line(group: pd.DataFrame) -> str:
    """A group of `ranked` as text."""
    runs = ", ".join(f"{row.label} {score_text(row)}" for row in group.itertuples())
    return f"about {byte_size(group['live_bytes'].median())}: {runs}"


def caption_significance(batch: Batch, group: pd.DataFrame) -> str:
    """Which cells of a group differ significantly from its first; "" for a group of one."""
    rivals = compare_with_best(batch, group)
    if rivals.empty:
        return ""
    first = group.iloc[0]["label"]
    parts = []
    better = "more often right than" if batch.is_asked else "closer to the full cache than"
    for apart, words in ((True, better), (False, "not significantly different from")):
        here = rivals[rivals["apart"] == apart]
        comparisons = ", ".join(f"{row.label} ({row.first} to {row.other})" for row in here.itertuples())
        parts += [f"{words} {comparisons}"] if comparisons else []
    counted = (
        "that only it gets right against those only the other does"
        if batch.is_asked
        else "on which it is closer against those on which the other is"
    )
    return f"{first} is {'; '.join(parts)}: prompts {counted}, sign test."


def score_text(line: Any) -> str:
    """`share_text`, or without answers the mean KL with its interval."""
    if line.n:
        return share_text(line)
    return f"KL {mean_words(line.mean_kl, line.mean_kl_low, line.mean_kl_high, line.ended)}"


def share_text(line: Any) -> str:
    """`9 of 13 (69 %, 42 to 87 %)`; no interval for one prompt."""
    get = line.__getitem__ if isinstance(line, pd.Series) else lambda name: getattr(line, name)
    if get("n") < 2:
        return f"{get('right')} of {get('n')}"
    bounds = 100 * get("share"), 100 * get("share_low"), 100 * get("share_high")
    share, low, high = in_range(*bounds, "{:.0f}".format)
    return f"{get('right')} of {get('n')} ({share} %, {low} to {high} %)"


def _bars(cells: pd.DataFrame, theme: Theme) -> list[Any]:
    """In each cell a scale from 0 to 100 %, the interval and the share."""
    known = cells[cells["n"] > 0]
    whole = known["span"] - 1 + SPAN
    start = known["x"] - whole / 2
    low, high, share = (start + whole * known[name].astype(float) for name in ("share_low", "share_high", "share"))
    y = known["y"] + FOOT
    colour = SEQUENTIAL[theme][-2] if theme == "light" else pick(HUES["blue"], theme)
    hover = [[row.row, row.column, _told(row)] for row in known.itertuples()]
    quiet = mix(QUIET[theme], SURFACES[theme], 0.6)
    shared = {"showlegend": False, "customdata": hover, "hovertemplate": "%{customdata[2]}<extra></extra>"}
    lines = [
        go.Bar(
            orientation="h",
            y=y,
            x=wide,
            base=begin,
            width=thick,
            marker={"color": ink, "line": {"width": 0}},
            **shared,
            **no_fading(),
        )
        for wide, begin, thick, ink in (
            (whole, start, 0.02, quiet),
            (high - low, low, BAR, mix(colour, SURFACES[theme], 0.45)),
        )
    ]
    dots = go.Scatter(x=share, y=y, mode="markers", marker={"size": 10, "color": colour}, **shared, **no_fading())
    return [*lines, dots]


def _fates(cells: pd.DataFrame, theme: Theme) -> list[go.Bar]:
    """One bar per cell: shares of the fact that were kept, merged and dropped."""
    known = cells[cells["traced"] > 0]
    whole = known["span"].to_numpy(float) - 1 + SPAN
    before = known["x"].to_numpy(float) - whole / 2
    traces = []
    for fate, (name, state, pattern) in FATES.items() if len(known) else ():
        wide = whole * known[fate].to_numpy(float)
        colour = pick(STATE_COLOURS[state], theme)
        look = {"color": colour, "pattern": hatch(pattern, colour, theme, size=4), "line": {"width": 0}}
        hover = [
            [
                row.row,
                row.column,
                f"{row.label}: {percent(getattr(row, fate))} of the fact {name}, in all heads, mean "
                f"over {prompts(row.traced)}",
            ]
            for row in known.itertuples()
        ]
        traces.append(
            go.Bar(
                orientation="h",
                y=known["y"] + STRIP_FOOT,
                x=wide,
                base=before,
                width=STRIP,
                name=name,
                customdata=hover,
                hovertemplate="%{customdata[2]}<extra></extra>",
                marker=look,
                **no_fading(),
            )
        )
        before = before + wide
    return traces


def _told(row: Any) -> str:
    """Hover text of a cell."""
    kls = []
    for name in ("kl_answer", "mean_kl"):
        value = getattr(row, name)
        if pd.isna(value):
            kls.append("not measured")
        elif row.ended < 2:
            kls.append(number(value))
        else:
            kls.append(range_words(value, getattr(row, f"{name}_low"), getattr(row, f"{name}_high"), number))
    parts = [
        f"<b>{visible(row.label, 60)}</b>: right {share_text(row)}",
        f"{row.nearly} nearly, {row.wrong} wrong",
        f"KL on the answer {kls[0]}, on all {kls[1]}, nats per token",
        f"live bytes {bytes_text(row) or 'not recorded'}",
    ]
    return "<br>".join(parts).replace("·", " ")
