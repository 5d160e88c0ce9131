"""How far back each layer looks: mean attended distance, and the attention of sinks and of the recent text."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.similarity.float16 import block_edges
from kvlab.common.errors import UserError
from kvlab.trace.reader import Run

SINKS = 4
LOCAL = 32
MOST_ROWS = 64


def by_layer(run: Run) -> pd.DataFrame:
    """One row a layer and KV head, means over at most `MOST_ROWS` recorded queries of the full cache's attention.

    Columns: layer, head, distance (tokens from the query to what it attends to, sinks left out), share (distance over
    the text before the query), sink_mass (first `SINKS` tokens), local_mass (last `LOCAL` tokens).
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
    """The four measures of attention rows (queries, tokens), of the last prompt token and each `every`-th behind it.

    A query that looks at nothing but the sinks has no distance, and does not count in its mean.
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
    """The mean of the queries it is defined for, NaN where it is for none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def layer_means(heads: pd.DataFrame) -> pd.DataFrame:
    """One row a layer: means over its heads, and the smallest and largest distance share among them."""
    groups = heads.groupby("layer")
    table = groups[["distance", "share", "sink_mass", "local_mass"]].mean()
    return table.assign(lowest=groups["share"].min(), highest=groups["share"].max()).reset_index()


def attention_map(run: Run, layer: int, head: int, columns: int = 384) -> pd.DataFrame:
    """Attention of each recorded query (a row a step) to blocks of tokens (columns, by first position), summed.

    Raises:
        UserError: attention was not recorded.
    """
    mass = run.attention(layer, head, thinned=True)[0].astype(np.float32)
    edges = block_edges(0, mass.shape[1], columns)
    sums = np.add.reduceat(mass, edges[:-1], axis=1)
    steps = pd.Index(np.arange(len(mass)) * run.attention_every, name="step")
    return pd.DataFrame(sums, index=steps, columns=pd.Index(edges[:-1], name="token"))
