"""Budgets over the layers: asked for and used, how straight they fall, and whether the sinks were left alone."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from kvlab.analysis.lineage import Lineage
from kvlab.trace.reader import Run


def layer_budgets(steps: pd.DataFrame, step: int) -> pd.DataFrame:
    """One row a layer at the last recorded step up to `step`: mean slots asked for and live over its KV heads.

    Columns: layer, asked, live, tokens, line (least squares through `asked`).
    """
    known = steps[steps["step"] <= step]
    here = steps[steps["step"] == (known["step"].max() if len(known) else steps["step"].min())]
    table = here.groupby("layer").agg(
        asked=("budget_slots", "mean"), live=("live_slots", "mean"), tokens=("tokens_seen", "max")
    )
    table = table.reset_index()
    return table.assign(line=straight(table["layer"].to_numpy(float), table["asked"].to_numpy(float))[0])


def straight(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """The least-squares line through the points, and how much of their variance it explains (1 where there is none)."""
    if len(x) < 2:
        return y.copy(), 1.0
    # Around the mean, so that what equal values are off by rounding is not taken for variance of their size.
    mean = y.mean()
    slope, start = np.polyfit(x, y - mean, 1)
    line = start + slope * x
    spread = float(((y - mean) ** 2).sum())
    return line + mean, 1.0 if spread == 0 else 1 - float(((y - mean - line) ** 2).sum()) / spread


def spread_by_axis(steps: pd.DataFrame, step: int) -> dict[str, float]:
    """How unequal the live slots are: largest over smallest layer mean, and largest over smallest head of a layer."""
    here = steps[steps["step"] == step]
    layers = here.groupby("layer")["live_slots"].mean()
    heads = here.groupby("layer")["live_slots"].agg(lambda slots: ratio(slots.max(), slots.min()))
    return {"layers": ratio(layers.max(), layers.min()), "heads": float(heads.max())}


def ratio(slots: float, others: float) -> float:
    """Slots over slots: infinite over none, and 1 where there are none of either."""
    if others:
        return float(slots / others)
    return float("inf") if slots else 1.0


def touched_sinks(run: Run, sinks: int) -> tuple[int, int]:
    """How many (head, sink) pairs took part in any event, and how many there are."""
    if sinks <= 0:
        return 0, 0
    events = run.select("events", columns=["layer", "head", "source", "target"])
    sources = events[events["source"] < sinks].rename(columns={"source": "sink"})[["layer", "head", "sink"]]
    targets = events[(events["target"] >= 0) & (events["target"] < sinks)]
    targets = targets.rename(columns={"target": "sink"})[["layer", "head", "sink"]]
    heads = run.steps[["layer", "head"]].drop_duplicates().shape[0]
    return len(pd.concat([sources, targets]).drop_duplicates()), heads * sinks


MOST_SLOTS = 400


def spans(lineage: Lineage, step: int, window: int) -> pd.DataFrame:
    """One row a live slot after `step`: position, first and last token in it, tokens, and generation.

    `generation` is the least number of times its tokens were pooled: windows of `window` need ceil(log(tokens) /
    log(window)) rounds for so many. Rounds inside one step leave a single event each, so the least is what is known.
    """
    owner = lineage.owners(step)
    alive = np.flatnonzero(lineage.alive(step))
    inside = np.flatnonzero(owner >= 0)
    order = inside[np.argsort(owner[inside], kind="stable")]
    slots, start, counts = np.unique(owner[order], return_index=True, return_counts=True)
    first, last = np.minimum.reduceat(order, start), np.maximum.reduceat(order, start)
    table = pd.DataFrame({"position": slots, "first": first, "last": last, "tokens": counts})
    table = table[table["position"].isin(alive)].reset_index(drop=True)
    return table.assign(generation=[_generation(tokens, window) for tokens in table["tokens"]])


def age_and_tokens(spans: pd.DataFrame) -> float:
    """Spearman's rank correlation of a slot's age (how far back it begins) with the tokens it stands for."""
    if spans["tokens"].nunique() < 2:
        return math.nan
    return float((-spans["first"]).rank().corr(spans["tokens"].rank()))


def _generation(tokens: int, window: int) -> int:
    return math.ceil(round(math.log(tokens) / math.log(window), 6)) if tokens > 1 else 0
