"""Heads that lost answers: how often restoring one head brought a lost answer back, over many prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from kvlab.common.formatting import prompts
from kvlab.core.restore import head_words
from kvlab.trace.restore_results import RestoreResult
from kvlab.views.base.head_map import head_map
from kvlab.views.base.palette import LOSS, Theme
from kvlab.views.base.words import plural, sentence, some_of
from kvlab.views.frames.restore import cheapest, slot_count_text

FAILED = ("nearly", "wrong")


class LostHeads(NamedTuple):
    """Counts over restore results.

    Attributes:
        heads: one row per layer and KV head: layer, head, count (results whose cheapest change names this head) and
            slots (the median price of these, empty for a count of 0).
        results: number of results.
        located: results whose cheapest change names heads; `everywhere`: whose change is in every head.
        slots: the price in slots of each result that is restored, ascending.
    """

    heads: pd.DataFrame
    results: int
    located: int
    everywhere: int
    slots: tuple[int, ...]


def failed_runs(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of compressed runs with a wrong answer (`verdicts`, or the prompts of a batch).

    Prompts that the full cache itself fails (`reference`, if there is this column) do not count.
    """
    failed = table[(table["method"] != "full") & table["verdict"].isin(FAILED)]
    return failed[failed["reference"] == "right"] if "reference" in failed else failed


def count_lost_heads(results: Sequence[RestoreResult], layers: Sequence[int], heads: int) -> LostHeads:
    """Count over results how often the cheapest change that restores an answer names each head."""
    changes = [change for result in results if (change := cheapest(result)) is not None]
    located = [change for change in changes if change.returned.heads is not None]
    counts: Counter[tuple[int, int]] = Counter()
    prices: dict[tuple[int, int], list[int]] = {}
    for change in located:
        for place in set(change.returned.heads or ()):
            counts[place] += 1
            prices.setdefault(place, []).append(change.slots)
    rows = [
        (layer, head, counts[layer, head], float(median(prices[layer, head])) if counts[layer, head] else None)
        for layer, head in product(layers, range(heads))
    ]
    table = pd.DataFrame(rows, columns=["layer", "head", "count", "slots"]).astype({"slots": float})
    slots = tuple(sorted(change.slots for change in changes))
    return LostHeads(table, len(results), len(located), len(changes) - len(located), slots)


def short_words(result: RestoreResult) -> str:
    """What restores the answer, for a cell of the board: `restored by 2 slots in layer 3 head 3`."""
    change = cheapest(result)
    if change is None:
        return "nothing tried restores it"
    heads = change.returned.heads
    where = "every head" if heads is None else head_words(heads) if len(heads) == 1 else f"{len(heads)} heads"
    if change.slots < 1:
        return f"restored in {where} for no slot more"
    return f"restored by {slot_count_text(change.slots)} in {where}"


def lost_heads(lost: LostHeads, theme: Theme = "light") -> go.Figure:
    """Failed runs whose answer one or few heads restore, counted by layer and KV head."""
    counts, slots = (lost.heads.pivot(index="layer", columns="head", values=name) for name in ("count", "slots"))
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
        f"Heads that lost the answer: where {plural(lost.results, 'lost answer')} can be restored",
        theme,
        bar="failed runs",
        hover=": %{z:.0f} failed runs%{text}",
        high=highest,
        colours=LOSS[theme],
        bar_options={"tickvals": ticks},
        words=words,
        text=prices,
    )


def caption_lost_heads(lost: LostHeads, over: int) -> str:
    """How many lost answers a few heads bring back."""
    count = some_of(lost.located, lost.results, "lost answer")
    return sentence(f"giving their tokens back to single heads restores {count}, of {prompts(over)}")
