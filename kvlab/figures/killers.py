"""Killer heads: how often each head lost the answer of a failed run, over many prompts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.analysis.comparison.killers import Killers
from kvlab.common.formatting import prompts
from kvlab.figures.simple import comparison as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.head_map import head_map
from kvlab.views.base.palette import LOSS, Theme
from kvlab.views.base.words import number, plural
from kvlab.views.frames.restore import slot_count_text


def killer_heads(killers: Killers, theme: Theme = "light") -> go.Figure:
    """Failed runs whose answer one or few heads restore, counted by layer and KV head."""
    counts, slots = (killers.heads.pivot(index="layer", columns="head", values=name) for name in ("count", "slots"))
    words = np.array([[f"{count}" if count else "" for count in row] for row in counts.to_numpy()], object)
    prices = np.array(
        [
            ["" if pd.isna(price) else f", median price {slot_count_text(round(price))}" for price in row]
            for row in slots.to_numpy()
        ],
        object,
    )
    highest = max(1, int(counts.to_numpy().max()))
    ticks = sorted({0, (highest + 1) // 2, highest})
    return head_map(
        counts,
        f"Killer heads: where {plural(killers.results, 'lost answer')} can be restored",
        theme,
        bar="failed runs",
        hover=": %{z:.0f} failed runs%{text}",
        high=highest,
        colours=LOSS[theme],
        bar_options={"tickvals": ticks},
        words=words,
        text=prices,
    )


@with_simple(simple.killer_heads)
def caption_killer_heads(killers: Killers, over: int) -> str:
    """The head named most often, with n and the price; `over` is the number of prompts."""
    told = [
        f"Of {plural(killers.results, 'lost answer')} over {prompts(over)}, {killers.located} can be restored in "
        "single heads"
    ]
    if killers.everywhere:
        told.append(f"{killers.everywhere} only in every head")
    if killers.unrestored:
        told.append(f"{killers.unrestored} not by anything that was tried")
    sentences = [", ".join(told) + "."]
    if killers.located:
        top = killers.heads.loc[killers.heads["count"].idxmax()]
        often = (
            f"Most often: layer {top['layer']:.0f}, head {top['head']:.0f} ({top['count']:.0f} of {killers.results})."
        )
        sentences.append(often)
    if killers.slots:
        low = killers.slots[0]
        high = killers.slots[-1]
        middle = number(float(np.median(killers.slots)))
        span = f"{low:,} to {high:,} slots, median {middle}" if low != high else slot_count_text(low)
        sentences.append(f"Price of an answer: {span}, over all layers and heads.")
    return " ".join(sentences)
