"""PyramidPool by layer: requested and live slots, pooled windows, untouched sinks, and attended distance."""

import math

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.frames.float16 import block_edges
from kvlab.views.frames.lineage import Lineage


def layer_budgets(steps: pd.DataFrame, step: int) -> pd.DataFrame:
    """One row per layer at the last recorded step up to `step`: mean requested and live slots over its KV heads.

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
    """Least-squares line through the points, and the explained variance (1 if there is none)."""
    if len(x) < 2:
        return y.copy(), 1.0
    # Centred, so that rounding errors of equal values do not count as variance.
    mean = y.mean()
    slope, start = np.polyfit(x, y - mean, 1)
    line = start + slope * x
    spread = float(((y - mean) ** 2).sum())
    return line + mean, 1.0 if spread == 0 else 1 - float(((y - mean - line) ** 2).sum()) / spread


def spread_by_axis(steps: pd.DataFrame, step: int) -> dict[str, float]:
    """Inequality of live slots: largest over smallest layer mean, and largest over smallest head within a layer."""
    here = steps[steps["step"] == step]
    layers = here.groupby("layer")["live_slots"].mean()
    heads = here.groupby("layer")["live_slots"].agg(lambda slots: ratio(slots.max(), slots.min()))
    return {"layers": ratio(layers.max(), layers.min()), "heads": float(heads.max())}


def ratio(slots: float, others: float) -> float:
    """Ratio of slots: infinite over none, and 1 if both are none."""
    if others:
        return float(slots / others)
    return float("inf") if slots else 1.0


MOST_SLOTS = 400


def spans(lineage: Lineage, step: int, window: int) -> pd.DataFrame:
    """One row per live slot after `step`: position, first and last token in it, tokens, and generation.

    `generation` is the minimum number of times its tokens were pooled: windows of `window` need ceil(log(tokens) /
    log(window)) rounds. Rounds within one step leave a single event, so only the minimum is known.
    """
    owner = lineage.owners(step)
    alive = np.flatnonzero(lineage.alive(step))
    inside = np.flatnonzero(owner >= 0)
    order = inside[np.argsort(owner[inside], kind="stable")]
    slots, start, counts = np.unique(owner[order], return_index=True, return_counts=True)
    first = np.minimum.reduceat(order, start)
    last = np.maximum.reduceat(order, start)
    table = pd.DataFrame({"position": slots, "first": first, "last": last, "tokens": counts})
    table = table[table["position"].isin(alive)].reset_index(drop=True)
    rounds = np.round(np.log(table["tokens"]) / math.log(window), 6)
    return table.assign(generation=np.ceil(rounds).astype(int))


SINKS = 4
LOCAL = 32
MOST_ROWS = 64


def by_layer(run: Run) -> pd.DataFrame:
    """One row per layer and KV head, means over at most `MOST_ROWS` recorded queries, with nothing dropped.

    Columns: layer, head, distance (tokens from the query to what it attends to, without sinks), share (distance
    relative to the text before the query), sink_mass (first `SINKS` tokens), local_mass (last `LOCAL` tokens).
    """
    model = run.record.model
    rows = []
    for layer in range(model.num_hidden_layers):
        for head in range(model.num_key_value_heads):
            try:
                mass = run.attention(layer, head, thinned=True)[0]
            except UserError:
                continue
            rows.append({"layer": layer, "head": head, **measures(mass, run.record.prompt_tokens, run.attention_every)})
    return pd.DataFrame(rows)


def measures(mass: np.ndarray, prompt_tokens: int, every: int = 1) -> dict[str, float]:
    """The four measures of attention rows (queries, tokens): the last prompt token, then every `every`-th query.

    A query that attends only to sinks has no distance and is left out of its mean.
    """
    chosen = np.unique(np.linspace(0, len(mass) - 1, min(MOST_ROWS, len(mass))).round().astype(int))
    rows = mass[chosen].astype(np.float32)
    whole = rows.sum(axis=1, keepdims=True)
    rows /= np.where(whole > 0, whole, np.nan)
    query = (prompt_tokens - 1 + chosen * every)[:, None]
    back = query - np.arange(rows.shape[1])[None, :]
    looked = rows[:, SINKS:].sum(axis=1)
    far = (rows[:, SINKS:] * np.maximum(back[:, SINKS:], 0)).sum(axis=1)
    distance = far / np.where(looked > 0, looked, np.nan)
    share = distance / np.where(query[:, 0] > 0, query[:, 0], np.nan)
    return {
        "distance": _mean(distance),
        "share": _mean(share),
        "sink_mass": _mean(rows[:, :SINKS].sum(axis=1)),
        "local_mass": _mean((rows * ((back >= 0) & (back < LOCAL))).sum(axis=1)),
    }


def _mean(values: np.ndarray) -> float:
    """The mean over defined values, NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def layer_means(heads: pd.DataFrame) -> pd.DataFrame:
    """One row per layer: means over its heads, and the smallest and largest distance share among them."""
    groups = heads.groupby("layer")
    table = groups[["distance", "share", "sink_mass", "local_mass"]].mean()
    return table.assign(lowest=groups["share"].min(), highest=groups["share"].max()).reset_index()


def attention_map(run: Run, layer: int, head: int, columns: int = 384) -> pd.DataFrame:
    """Attention of each recorded query (one row per step) on blocks of tokens (columns, by first position), summed.

    Raises:
        UserError: attention was not recorded.
    """
    mass = run.attention(layer, head, thinned=True)[0].astype(np.float32)
    edges = block_edges(0, mass.shape[1], columns)
    sums = np.add.reduceat(mass, edges[:-1], axis=1)
    steps = pd.Index(np.arange(len(mass)) * run.attention_every, name="step")
    return pd.DataFrame(sums, index=steps, columns=pd.Index(edges[:-1], name="token"))
