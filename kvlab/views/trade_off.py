"""Quality against bytes: the runs of a comparison, or the cells of a batch, as labelled points."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import ONE_PROMPT, mean_words, prompts
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import Labels
from kvlab.views.base.lines import POINT, place_labels
from kvlab.views.base.palette import SURFACES, VERDICTS, Style, Theme, run_styles
from kvlab.views.base.template import CLEAR, HEIGHT, INK, QUIET, finish, log_axis
from kvlab.views.base.view import view
from kvlab.views.base.words import AXES, byte_size, byte_unit, join_names, near, number, percent, visible
from kvlab.views.compare import FLOOR
from kvlab.views.frames import trade_off
from kvlab.views.frames.board import check_answer, expected_answer, places, verdicts
from kvlab.views.frames.compare import headline
from kvlab.views.frames.verdict import KINDS

PLOT = (520.0, 290.0)  # pixels of the plot on a narrow page, for its labels
MOST_LABELS = 16
SIGNS = {kind: VERDICTS[kind][0] for kind in KINDS[:3]}


@view("quality", title="Quality against bytes", page="result")
def quality(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run (`run_points`), with its verdict where the comparison has an expected answer."""
    expected = expected_answer(runs, Labels())
    table = headline(runs) if expected is None else verdicts(runs, check_answer(runs, expected))
    return trade_off.run_points(table, places(runs))


@quality.figure
def quality_against_bytes(
    points: pd.DataFrame, theme: Theme = "light", budget: str = "", axis: str = trade_off.HELD
) -> go.Figure:
    """Quality against bytes, one labelled point per run or cell, from `trade_off.run_points` or `batch_points`.

    `axis`: bytes held at the end, or read by a decode step. Budgets of one method are joined by a line. With a
    `budget`, its points are filled and labelled, the others are small. The axes show the compressed runs; the full
    cache is a line, at the right edge if it has far more bytes.
    """
    points = trade_off.with_axis(points, axis)
    known = points[points["quality"].notna() & points["live_bytes"].notna()]
    drawn = known[known["method"] != "full"]
    is_kl = trade_off.measures_kl(points)
    factor, unit = byte_unit(float(drawn["live_bytes"].max()) if len(drawn) else 1)
    drawn = drawn.assign(x=drawn["live_bytes"] / factor)
    for name in ("quality", "low", "high"):
        drawn[name] = drawn[name].clip(lower=FLOOR) if is_kl else drawn[name]
    across = _zoom(drawn["x"], 0.38, 0.25)
    up = [-0.06, 1.06]
    if is_kl:
        ends = pd.concat([drawn[name].dropna() for name in ("quality", "low", "high")])
        up = _zoom(np.log10(ends.astype(float)), 0.15, 0.15, 0.6)
    drawn["chosen"] = drawn.index.isin(trade_off.at_budget(drawn, budget).index)
    drawn = drawn.sort_values("x", kind="stable")
    figure = go.Figure()
    styles = run_styles(drawn[["row", "method"]].itertuples(index=False, name=None), theme)
    for row, style in styles.items():
        _add_method(figure, drawn[drawn["row"] == row], style, unit, is_kl)
    # Lines of several budgets and a frontier cannot be told apart.
    best = drawn.loc[trade_off.best_points(known).index] if drawn["row"].is_unique else drawn.head(0)
    if len(best) > 1:
        line = {"color": QUIET[theme], "width": 1.5, "shape": "hv", "dash": "dot"}
        figure.add_scatter(
            x=best["x"], y=best["quality"], name="Pareto frontier", mode="lines", line=line, hoverinfo="skip"
        )
    labelled = drawn[drawn["chosen"]]
    fits = len(labelled) <= MOST_LABELS
    # Titles, axes and height.
    count = int(drawn["prompts"].max()) if len(drawn) else 1
    what = f"{ONE_PROMPT}, one dot per run" if count == 1 else f"means over {prompts(count)}, 95 % intervals"
    x = f"{AXES[axis]} ({unit}): fewer is better{', axis not from 0' if across[0] > 0 else ''}"
    y = "mean KL (nats per token, log): lower is better" if is_kl else "answers right: higher is better"
    height = HEIGHT + 60 + (0 if fits else 8 * drawn["row"].nunique())
    finish(figure, title=f"Quality against bytes: {what}", x=x, y=y, theme=theme, height=height, legend=not fits)
    figure.update_yaxes(**(log_axis(drawn["quality"]) if is_kl else {"tickformat": ".3~p"}), range=up)
    figure.update_xaxes(range=across).update_layout(hovermode="closest")
    for row in known[known["method"] == "full"].head(1).itertuples():
        text = "KL 0" if is_kl else f"{percent(row.quality)} right"
        # The full cache's bytes as a line, or the right edge as a mark of where it would be.
        place = float(row.live_bytes) / factor
        words = f"full cache: {text} at {number(place)} {unit}{' →' if place > across[1] else ''} "
        look = {"text": words, "font": {"size": 12, "color": QUIET[theme]}, "showarrow": False}
        figure.add_vline(x=min(place, across[1]), line={"color": QUIET[theme], "dash": "dot", "width": 1.2})
        figure.add_annotation(x=min(place, across[1]), xanchor="right", y=1, yref="paper", yanchor="bottom", **look)
    if fits:
        frame = Axes(across, up, is_kl)
        # A point has the name of its run, or of its method where one budget is shown, after the mark of its verdict.
        signs = [f"{SIGNS[verdict]} " if verdict in SIGNS else "" for verdict in labelled["verdict"]]
        names = [sign + name for sign, name in zip(signs, labelled["row" if budget else "label"], strict=True)]
        # Boxes to keep free of labels: intervals, and the lines of methods and of the frontier.
        known_ends = labelled[labelled["low"].notna()]
        ends = (frame.right(known_ends["x"]), frame.down(known_ends["high"]), frame.down(known_ends["low"]))
        bars = [(x - 3, top, x + 3, bottom) for x, top, bottom in zip(*ends, strict=True)]
        lines = [frame.strokes(cells["x"], cells["quality"]) for _, cells in drawn.groupby("row")]
        steps = frame.strokes(best["x"].repeat(2).iloc[1:], best["quality"].repeat(2).iloc[:-1])
        colours = [styles[row].colour for row in labelled["row"]]
        _label_points(figure, labelled, names, colours, frame, [*bars, *chain(*lines), *steps], theme)
    return figure


def _add_method(figure: go.Figure, cells: pd.DataFrame, style: Style, unit: str, is_kl: bool) -> None:
    """The points of one method, joined by a line, with their intervals."""
    hover = []
    for line in cells.itertuples():
        amount = mean_words(line.quality, line.low, line.high, int(line.prompts), number if is_kl else percent)
        hover.append([line.label, f"KL {amount} nats per token" if is_kl else f"right {amount}"])
    symbols = [style.marker if chosen else f"{style.marker}-open" for chosen in cells["chosen"]]
    bars: dict[str, Any] = {}
    if cells["low"].notna().any():
        high, low = ((cells[name] - cells["quality"]).abs().where(cells["chosen"]) for name in ("high", "low"))
        bars["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": high,
            "arrayminus": low,
            "thickness": 1.5,
            "width": 5,
            "color": style.colour,
        }
    figure.add_scatter(
        x=cells["x"],
        y=cells["quality"],
        name=str(cells["row"].iloc[0]),
        customdata=hover,
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 1.5},
        **bars,
        marker={
            "symbol": symbols,
            "color": style.colour,
            "opacity": 1,
            "size": [13 if one else 8 for one in cells["chosen"]],
        },
        hovertemplate=f"%{{customdata[0]}}<br>%{{x:.3g}} {unit}, %{{customdata[1]}}<extra></extra>",
    )


def _zoom(values: pd.Series, before: float, after: float, least: float = 0.0) -> list[float]:
    """A range around the values with margins in shares of their span, which is at least `least` or 10 % of them."""
    if not len(values):
        return [0.0, 1.0]
    low = float(values.min())
    high = float(values.max())
    span = max(high - low, least, 0.1 * abs(high))
    # A short span lies in the middle of the range.
    spare = (span - (high - low)) / 2
    start = low - spare - before * span
    return [max(0.0, start) if low > 0 else start, high + spare + after * span]


Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


class Axes(NamedTuple):
    """The ranges of both axes, and where a point is on a plot of the size `PLOT`."""

    across: list[float]
    up: list[float]
    is_log: bool

    def right(self, x: pd.Series) -> list[float]:
        """Pixels from the left."""
        return (PLOT[0] * (x - self.across[0]) / (self.across[1] - self.across[0])).tolist()

    def down(self, y: pd.Series) -> list[float]:
        """Pixels from the top."""
        value = np.log10(y.astype(float)) if self.is_log else y
        return (PLOT[1] * (self.up[1] - value) / (self.up[1] - self.up[0])).tolist()

    def strokes(self, x: pd.Series, y: pd.Series) -> list[Box]:
        """Boxes along the line through these points."""
        corners = np.column_stack([self.right(x), self.down(y)])
        boxes = []
        for start, stop in pairwise(corners):
            count = 1 + int(np.abs(stop - start).max() / 12)
            boxes += [(x - 2, y - 2, x + 2, y + 2) for x, y in np.linspace(start, stop, count + 1).tolist()]
        return boxes


def _label_points(
    figure: go.Figure,
    cells: pd.DataFrame,
    texts: list[str],
    colours: list[str],
    frame: Axes,
    taken: list[Box],
    theme: Theme,
) -> None:
    """The name of each run next to its point, with a line to it if it is further away."""
    heights = np.log10(cells["quality"]) if frame.is_log else cells["quality"]
    points = list(zip(frame.right(cells["x"]), frame.down(cells["quality"]), strict=True))
    labels = place_labels(points, texts, PLOT, taken)
    for text, colour, x, y, label in zip(texts, colours, cells["x"], heights, labels, strict=True):
        figure.add_annotation(
            x=x,
            y=y,
            ax=label.across,
            ay=label.down,
            text=visible(text, 60).replace("·", " "),
            xanchor=label.anchor,
            yanchor="middle",
            showarrow=True,
            arrowhead=0,
            arrowwidth=1.2,
            standoff=POINT if label.leads else 0,
            arrowcolor=colour if label.leads else CLEAR,
            font={"size": 12, "color": INK[theme]},
            bgcolor=SURFACES[theme],
            borderpad=0,
        )


@quality.caption
def caption_quality_against_bytes(points: pd.DataFrame, budget: str = "", axis: str = trade_off.HELD) -> str:
    """The right runs with the fewest bytes, or without verdicts the run of the best quality.

    Then which methods hold more bytes than others of their budget.
    """
    shown = trade_off.at_budget(trade_off.with_axis(points, axis), budget)
    compressed = shown[(shown["method"] != "full") & shown["quality"].notna() & shown["live_bytes"].notna()]
    unequal = caption_unequal_bytes(points, budget) if axis == trade_off.HELD else ""
    if compressed.empty:
        return f"No compressed run recorded both its memory and its quality. {unequal}".strip()
    is_kl = trade_off.measures_kl(points)
    size = compressed["live_bytes"]
    name = "row" if budget else "label"
    right = compressed["verdict"] == "right"
    good = -compressed["quality"] if is_kl else compressed["quality"]
    best = compressed[[near(float(value), float(good.max())) for value in good]]
    if right.any():
        few = compressed[right & (size <= (1 + trade_off.UNEQUAL) * size[right].min())]
        few = few.sort_values(["live_bytes", "quality"], ascending=[True, is_kl], kind="stable")
        text = f"Right at the fewest bytes: {_sized_names(few, name)}."
    elif not is_kl and compressed["quality"].max() <= 0:
        text = "No run has a right answer."
    elif len(best) == len(compressed) > 1:
        text = f"All runs are equally {'close to the full cache' if is_kl else 'often right'}."
    else:
        judged = compressed["verdict"].isin(["nearly", "wrong"]).any()
        closest = f"{'No run has a right answer; closest' if judged else 'Closest'} to the full cache"
        what = closest if is_kl else "Most often right"
        text = f"{what}: {_sized_names(best.sort_values('live_bytes', kind='stable'), name)}."
    return f"{text} {unequal}".strip()


def caption_unequal_bytes(points: pd.DataFrame, budget: str = "") -> str:
    """Which runs hold over `UNEQUAL` more than the median of their budget; "" if none does."""
    above = trade_off.unequal_bytes(trade_off.at_budget(points, budget))
    if above.empty:
        return ""
    names = _sized_names(above, "row" if budget else "label")
    return f"Not at equal bytes: {names} hold more than most at their budget."


def _sized_names(points: pd.DataFrame, name: str) -> str:
    """Names of points with their bytes."""
    sizes = zip(points[name], points["live_bytes"], strict=True)
    return join_names([f"{label} ({byte_size(size)})" for label, size in sizes])
