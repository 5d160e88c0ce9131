"""The figure of a verdict: a dot per prompt, mean and interval, the range that counts, and the paper's value."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.common.formatting import in_range, short
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Claim
from kvlab.views.base import HUES, INK, QUIET, SURFACES, Theme, finish, mix, number, pick

COLUMNS = ["number", "part", "value", "low", "high", "n"]
HEIGHT = 270
AXIS_CHARACTERS = 54  # of a line of the axis title: what the card has room for at 1280 pixels
DOT = "dot"
UNIT = "unit"
MEAN = "mean"
THRESHOLD = "threshold"
PRINTED = "paper"
# heights; dots of one bin are stacked about theirs
DOTS_AT = 0.55
MEAN_AT = -0.35
PRINTED_AT = -0.8
BOTTOM = -1.1
TOP = 1.3
BINS = 90
MOST_STEP = 0.14
DOTS_HIGH = 1.0
PIXELS = 60  # of a height of 1
LARGEST_DOT = 9
SMALLEST_DOT = 4
COUNTED = 5  # a stack of so many dots has their number above it


def card_frame(claim: Claim, measured: str = "", printed: Sequence[float] = ()) -> pd.DataFrame:
    """The figure's frame, `COLUMNS`: `number` is `measured`, what the values are, with its unit.

    `part` is dot (one prompt or pair of prompts), unit (a value without prompts, such as a benchmark's setting), mean,
    threshold or paper (`printed`). The mean has `low` and `high` (95 %) and `n`, the number of prompts. The threshold
    has as `low` and `high` the range that counts for the claim, infinite on an open side. Empty for a claim that no
    number decides.
    """
    found = claim.interval
    held = claim.threshold
    rows: list[dict[str, object]] = []
    if held is not None and (found is not None or claim.units):
        if found is not None:
            rows += [{"part": DOT, "value": value, "n": 1} for value in found.samples]
            rows.append({"part": MEAN, "value": found.mean, "low": found.low, "high": found.high, "n": found.n})
        else:
            rows += [{"part": UNIT, "value": value, "n": 0} for value in claim.units]
        low, high = held.bounds
        rows.append({"part": THRESHOLD, "value": held.value, "low": low, "high": high, "n": 0})
        rows += [{"part": PRINTED, "value": value, "n": 0} for value in printed]
    return pd.DataFrame(rows, columns=COLUMNS).assign(number=measured)


def verdict_card(frame: pd.DataFrame, theme: Theme, title: str) -> go.Figure:
    """Dots, mean with interval and the paper's values, one above the other on one axis; what counts is shaded.

    Raises ValueError for an empty frame.
    """
    if frame.empty:
        raise ValueError("a claim that no number decides has no figure")
    blue = pick(HUES["blue"], theme)
    green = pick(HUES["green"], theme)
    ink = INK[theme]
    (held,) = frame[frame["part"] == THRESHOLD].to_dict("records")
    dots = frame.loc[frame["part"].isin((DOT, UNIT)), "value"].to_numpy(float)
    printed = frame.loc[frame["part"] == PRINTED, "value"].to_numpy(float)
    means = frame[frame["part"] == MEAN].to_dict("records")
    # The axis has all values and finite bounds, with some room.
    shown = frame[["value", "low", "high"]].to_numpy(float).ravel()
    shown = shown[np.isfinite(shown)]
    room = 0.08 * (float(np.ptp(shown)) or max(abs(float(shown[0])), 1e-9))
    left = float(shown.min()) - room
    right = float(shown.max()) + room
    figure = go.Figure()
    _add_dots(figure, dots, blue, SURFACES[theme])
    # What one dot is.
    singles = int((frame["part"] == DOT).sum())
    unit = "each pair" if singles and singles != int(means[0]["n"]) else "each prompt"
    rows = {DOTS_AT: "each value" if (frame["part"] == UNIT).any() else unit}
    for mean in means:
        rows[MEAN_AT] = "mean, 95 %" if mean["n"] > 1 else "mean"
        low, high = (max(left, mean["low"]), min(right, mean["high"])) if mean["n"] > 1 else (mean["value"],) * 2
        figure.add_scatter(
            x=[mean["value"]],
            y=[MEAN_AT],
            mode="markers",
            name="mean",
            marker={"color": blue, "size": 12, "symbol": "diamond"},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [high - mean["value"]],
                "arrayminus": [mean["value"] - low],
                "color": blue,
                "thickness": 2.5,
                "width": 7,
            },
            hovertemplate="mean %{x:.4g}<extra></extra>",
        )
    if len(printed):
        rows[PRINTED_AT] = "the paper"
        figure.add_scatter(
            x=printed,
            y=np.full(len(printed), PRINTED_AT),
            mode="markers",
            name="the paper",
            marker={"color": ink, "size": 10, "symbol": "square-open", "line": {"width": 2}},
            hovertemplate="the paper %{x:.4g}<extra></extra>",
        )
    if not len(dots):
        figure.add_annotation(
            x=0.5,
            xref="paper",
            y=DOTS_AT,
            text="single values were not kept",
            showarrow=False,
            font={"size": 12, "color": QUIET[theme]},
        )
    _shade(figure, held, (left, right), green, QUIET[theme])
    across = "<br>".join(wrap(str(frame["number"].iloc[0]), AXIS_CHARACTERS))
    figure = finish(figure, title=title, x=across, y="", theme=theme, height=HEIGHT, legend=False)
    figure.update_yaxes(
        range=[BOTTOM if len(printed) else MEAN_AT - 0.3, TOP],
        tickvals=list(rows),
        ticktext=list(rows.values()),
        showgrid=False,
        zeroline=False,
        ticks="",
    )
    return figure.update_xaxes(range=[left, right])


def caption_card(frame: pd.DataFrame) -> str:
    """What dots, bar, shade and squares are, and n."""
    (held,) = frame[frame["part"] == THRESHOLD].to_dict("records")
    dots, units = (int((frame["part"] == part).sum()) for part in (DOT, UNIT))
    parts = [f"One dot per measured value ({units}), no interval" if units else ""]
    for mean in frame[frame["part"] == MEAN].to_dict("records"):
        prompts = int(mean["n"])
        middle, low, high = in_range(
            mean["value"],
            mean["low"],
            mean["high"],
            lambda bound: short(bound) if np.isfinite(bound) else "no bound",
        )
        parts += [
            f"One dot per prompt (n = {dots})"
            if dots == prompts
            else f"One dot per pair of prompts ({dots} pairs, n = {prompts} prompts)"
            if dots
            else f"The values of single prompts were not kept (n = {prompts})",
            f"diamond and bar: the mean {middle} and its 95 % interval ({low} to {high})"
            if prompts > 1
            else f"one prompt gives {middle} and no interval",
        ]
    printed = frame.loc[frame["part"] == PRINTED, "value"]
    values = (
        f"{number(min(printed))} to {number(max(printed))}" if len(printed) > 1 else ", ".join(map(number, printed))
    )
    parts.append(f"squares: the paper's own {values}, on its models and data" if len(printed) else "")
    return f"{'; '.join(filter(None, parts))}. Counts for the claim: {_range(held)}."


def _add_dots(figure: go.Figure, dots: np.ndarray, colour: str, ground: str) -> None:
    """Add a dot per value; those of nearly the same value are stacked, symmetric about `DOTS_AT`."""
    heights = np.zeros(len(dots))
    stacks = []
    most = 1
    if len(dots):
        width = float(np.ptp(dots)) / BINS or 1.0
        bins = np.round((dots - dots.min()) / width).astype(int)
        most = int(np.bincount(bins).max())
        step = min(MOST_STEP, DOTS_HIGH / max(1, most - 1))  # height between two dots of a stack
        for one in np.unique(bins):
            places = np.flatnonzero(bins == one)
            heights[places] = step * (np.arange(len(places)) - (len(places) - 1) / 2)
            stacks.append((float(dots[places].mean()), len(places)))
    size = min(LARGEST_DOT, max(SMALLEST_DOT, PIXELS * DOTS_HIGH / most))
    figure.add_scatter(
        x=dots,
        y=DOTS_AT + heights,
        mode="markers",
        name="dots",
        hovertemplate="%{x:.4g}<extra></extra>",
        marker={"color": colour, "size": size, "opacity": 0.75},
    )
    for value, count in stacks:
        if count >= COUNTED:
            figure.add_annotation(
                x=value,
                y=DOTS_AT + step * (count - 1) / 2,
                yshift=5,
                yanchor="bottom",
                text=f"{count}",
                showarrow=False,
                font={"size": 11, "color": colour},
                bgcolor=ground,
                borderpad=1,
            )


def _shade(figure: go.Figure, held: dict[str, float], span: tuple[float, float], green: str, grey: str) -> None:
    """Shade the range that counts, and name it at its bound, on the side of it that has more room."""
    left, right = span
    figure.add_vrect(
        x0=max(left, held["low"]),
        x1=min(right, held["high"]),
        fillcolor=green,
        opacity=0.1,
        line_width=0,
        layer="below",
    )
    bounds = [one for one in (held["low"], held["high"]) if np.isfinite(one)]
    for bound in bounds:
        figure.add_vline(x=bound, line={"color": grey, "width": 2, "dash": "dash"}, layer="below")
    is_left = bounds[0] < (left + right) / 2
    figure.add_annotation(
        x=bounds[0],
        y=1,
        yref="paper",
        text=f"counts: {_range(held)}",
        showarrow=False,
        yanchor="bottom",
        xanchor="left" if is_left else "right",
        font={"size": 12, "color": grey},
    )


def _range(held: dict[str, float]) -> str:
    low = held["low"]
    high = held["high"]
    if np.isfinite(low) and np.isfinite(high):
        return f"{number(low)} to {number(high)}"
    return f"above {number(low)}" if np.isfinite(low) else f"below {number(high)}"


LOOKS = {HOLDS: ("green", ""), FAILS: ("red", "/"), OPEN: ("grey", ".")}
ROW = 30  # pixels of a paper
FEW_CLAIMS = 5  # an axis with fewer has a tick at each


def verdict_bars(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """How many claims of every paper hold, do not, or are open: a panel per model, a bar per paper.

    `frame` has columns model, paper, verdict, claims (`scorecard.verdict_frame`).
    """
    models = frame["model"].drop_duplicates().tolist() or [""]
    papers = frame["paper"].drop_duplicates().tolist()
    figure = make_subplots(1, len(models), shared_yaxes=True, column_titles=models, horizontal_spacing=0.03)
    for column, model in enumerate(models, start=1):
        for verdict, (hue, pattern) in LOOKS.items():
            mine = frame[(frame["model"] == model) & (frame["verdict"] == verdict)]
            colour = pick(HUES[hue], theme)
            figure.add_bar(
                x=mine["claims"],
                y=mine["paper"],
                orientation="h",
                name=verdict,
                legendgroup=verdict,
                showlegend=column == 1,
                text=mine["claims"],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                # A number is read on a plain or a sparsely and faintly hatched ground only.
                insidetextfont={"color": INK[theme] if pattern else SURFACES[theme]},
                marker={
                    "color": colour,
                    "pattern": {
                        "shape": pattern,
                        "fgcolor": mix(colour, SURFACES[theme], 0.4),
                        "bgcolor": mix(colour, SURFACES[theme], 0.7) if pattern else colour,
                        "size": 9,
                        "solidity": 0.12,
                    },
                    "line": {"width": 0},
                },
                hovertemplate=f"%{{y}}, {model}: %{{x}} {verdict}<extra></extra>",
                row=1,
                col=column,
            )
    finish(
        figure, title="Claims of the papers, by model", x="claims", y="", theme=theme, height=180 + ROW * len(papers)
    )
    # The legend is under the axis titles, at the figure's lower edge whatever its height.
    legend = {"yref": "container", "y": 0.0, "yanchor": "bottom"}
    figure.update_layout(barmode="stack", bargap=0.25, legend=legend, margin={"b": 90})
    for column, model in enumerate(models, start=1):
        if frame.loc[frame["model"] == model].groupby("paper")["claims"].sum().max() < FEW_CLAIMS:
            figure.update_xaxes(dtick=1, col=column)
    figure.update_annotations(font={"size": 13})
    return figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=papers, showgrid=False)


def verdicts_sentence(frame: pd.DataFrame) -> str:
    """How many claims hold on each model."""
    parts = []
    for model, group in frame.groupby("model", sort=False):
        held = int(group.loc[group["verdict"] == HOLDS, "claims"].sum())
        parts.append(f"{held} of {int(group['claims'].sum())} hold on {model}")
    return f"Of the claims, {'; '.join(parts)}." if parts else "No claim was judged yet."
