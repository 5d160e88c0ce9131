"""KL along the text and attention of the reading head, before and after restoring tokens."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.simple import attention as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.lines import add_line
from kvlab.views.base.palette import HUES, Theme, pick
from kvlab.views.base.template import finish
from kvlab.views.base.words import number, percent, visible
from kvlab.views.frames.restore import most_read

LOOK = (("grey", "dot", "circle"), ("blue", "solid", "diamond"))
BARS = {"full cache": ("ink", ""), "as it ran": ("grey", "/")}


def kl_before_after(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """KL from the full cache at every token of its continuation, from `analysis.comparison.restore.kl_by_series`."""
    figure = go.Figure()
    for (name, part), (hue, dash, symbol) in zip(frame.groupby("series", sort=False), LOOK, strict=False):
        hover = f"token %{{x}} “%{{customdata}}”<br>{name}: %{{y:.4g}} nats"
        words = part["text"].map(visible).tolist()
        add_line(
            figure,
            part["token"],
            part["kl"],
            str(name),
            pick(HUES[hue], theme),
            dash,
            hover,
            marker=symbol,
            size=5,
            customdata=words,
        )
    title = "KL from the full cache along its text"
    finish(figure, title=title, x="token of the continuation", y="KL (nats)", theme=theme)
    return figure.update_yaxes(rangemode="tozero")


@with_simple(simple.kl_before_after)
def caption_kl_before_after(frame: pd.DataFrame) -> str:
    """The means."""
    means = frame.groupby("series", sort=False)["kl"].mean()
    told = f"Mean KL {number(float(means.iloc[0]))} nats per token {means.index[0]}"
    after = [f", {number(float(mean))} with {str(name).removeprefix('+ ')}" for name, mean in means.iloc[1:].items()]
    return f"{told}{''.join(after)}."


def attention_before_after(frame: pd.DataFrame, head: tuple[int, int], theme: Theme = "light") -> go.Figure:
    """Attention of the answer's queries in the head that reads the fact, from `attention_by_series`."""
    figure = go.Figure()
    for name, part in frame.groupby("series", sort=False):
        hue, pattern = BARS.get(str(name), ("blue", ""))
        # Text first: a position before a number could be read as part of it.
        labels = [f"“{visible(text, 12)}” at {token}" for token, text in zip(part["token"], part["text"], strict=True)]
        figure.add_bar(
            x=labels,
            y=part["mass"],
            name=str(name),
            marker={"color": pick(HUES[hue], theme), "pattern": {"shape": pattern, "size": 5, "solidity": 0.3}},
            hovertemplate=f"token %{{x}}<br>{name}: %{{y:.3~p}}<extra></extra>",
        )
    title = f"Attention of the answer's queries: layer {head[0]}, head {head[1]}"
    finish(figure, title=title, x="token of the prompt", y="share of attention", theme=theme)
    return figure.update_yaxes(tickformat=".3~p", rangemode="tozero").update_xaxes(type="category", tickangle=-45)


@with_simple(simple.attention_before_after)
def caption_attention_before_after(frame: pd.DataFrame) -> str:
    """The token with the most attention apart from attention sinks, and the sink if it has more."""
    if frame.empty:
        return "Attention was not recorded: the answer is the first token after the prompt."
    full = frame[frame["series"] == "full cache"]
    first = full.loc[full["mass"].idxmax()]
    top = most_read(full)
    if first["token"] == top["token"]:
        return f"The full cache attends most to {_masses(frame, top)}."
    return (
        f"Attention sink {_masses(frame, first)}. Apart from it the full cache attends most to {_masses(frame, top)}."
    )


def _masses(frame: pd.DataFrame, top: pd.Series) -> str:
    """A token and its attention in every series."""
    here = frame[frame["token"] == top["token"]].set_index("series")["mass"]
    rest = "".join(f"; {percent(float(mass))} {name}" for name, mass in here.items() if name != "full cache")
    return f"“{top['text'].strip()}” (token {top['token']}): {percent(top['mass'])}{rest}"
