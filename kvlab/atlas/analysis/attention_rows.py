"""Recorded attention rows of one head: concentration, variance and ranking.

A row is one query's attention over all tokens (a KV head's mean over its query heads). `Rows` come from a comparison's
probe (`Run.history`, including the last prompt queries) or from the run's own steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.common.errors import UserError
from kvlab.trace.reader import Run

SHARES = np.linspace(0, 1, 51)
TOP = 0.2


@dataclass(frozen=True)
class Rows:
    """Attention (rows, tokens) float32; row `first` is the last prompt query, row r sees `seen[r]` tokens.

    `score` holds the unnormalised exp scores up to one factor per head, if the probe recorded them.
    """

    mass: np.ndarray
    first: int
    prompt_tokens: int
    score: np.ndarray | None = None

    @property
    def seen(self) -> np.ndarray:
        """(rows,) number of tokens visible to each query."""
        return self.prompt_tokens - self.first + np.arange(len(self.mass))

    @property
    def steps(self) -> np.ndarray:
        """(rows,) step of each row: 0 for the last prompt query, negative before it."""
        return np.arange(len(self.mass)) - self.first


def read_rows(run: Run, layer: int, head: int, with_history: bool = True) -> Rows:
    """The rows of one head, from the probe if there is one; raises UserError if nothing was recorded."""
    prompt = run.record.prompt_tokens
    if with_history and run.has_probe("history"):
        try:
            mass, log_score = (rows.astype(np.float32) for rows in run.history(layer, head))
        except UserError:
            return Rows(run.attention(layer, head)[0].astype(np.float32), 0, prompt)
        later = mass.shape[1] - prompt
        score = np.exp(log_score - log_score[np.isfinite(log_score)].max())
        return Rows(mass, len(mass) - later - 1, prompt, score)
    return Rows(run.attention(layer, head)[0].astype(np.float32), 0, prompt)


def heads_with_attention(run: Run) -> list[tuple[int, int]]:
    """All (layer, head) pairs with recorded attention."""
    model = run.record.model
    layers = [layer for layer in range(model.num_hidden_layers) if _was_recorded(run, layer)]
    return [(layer, head) for layer in layers for head in run.record.recording.of_heads(model.num_key_value_heads)]


def _was_recorded(run: Run, layer: int) -> bool:
    """All recorded heads of a layer are in one file; a cancelled run may lack some."""
    try:
        read_rows(run, layer, run.record.recording.of_heads(run.record.model.num_key_value_heads)[0])
    except UserError:
        return False
    return True


def concentration(rows: Rows, most_rows: int = 16) -> np.ndarray:
    """(rows, shares) mass held by the largest `SHARES` of the tokens, for rows from step 0 on; NaN without
    attention."""
    chosen = np.unique(np.linspace(rows.first, len(rows.mass) - 1, most_rows).round().astype(int))
    curves = []
    for row in chosen:
        mass = np.sort(rows.mass[row, : rows.seen[row]])[::-1]
        held = np.concatenate([[0], np.cumsum(mass)]) / (mass.sum() or np.nan)
        curves.append(np.interp(SHARES * len(mass), np.arange(len(held)), held))
    return np.array(curves)


def concentration_of_heads(run: Run, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """One row per head and share: columns layer, head, share, mass, least (minimum over the sampled rows).

    Raises:
        UserError: `heads` is empty, as for a run in progress.
    """
    if not heads:
        raise UserError("This run has no recorded attention (yet): choose another run.")
    parts = []
    for layer, head in heads:
        curves = concentration(read_rows(run, layer, head))
        place = {"layer": layer, "head": head, "share": SHARES}
        parts.append(pd.DataFrame(place | {"mass": curves.mean(0), "least": curves.min(0)}))
    return pd.concat(parts, ignore_index=True)


def top_share(rows: Rows, row: int, share: float = TOP) -> np.ndarray:
    """(tokens,) bool: the `share` of the tokens with the most attention in this row."""
    seen = rows.seen[row]
    count = max(1, int(np.ceil(share * seen)))
    top = np.zeros(rows.mass.shape[1], bool)
    top[np.argpartition(-rows.mass[row, :seen], count - 1)[:count]] = True
    return top


def variances(rows: Rows, window: int = 8) -> pd.DataFrame:
    """Variance of each prompt token's attention while decoding: over all steps, and within sliding windows.

    Columns token, mean, variance, window_variance (mean over all windows), shuffled (the same with shuffled steps). All
    variances divide by n - 1, so that without locality they agree for any window.
    """
    later = rows.mass[rows.first :, : rows.prompt_tokens].astype(np.float64)
    if len(later) <= window:
        return pd.DataFrame(columns=["token", "mean", "variance", "window_variance", "shuffled"])
    order = np.random.default_rng(0).permutation(len(later))
    return pd.DataFrame(
        {
            "token": np.arange(later.shape[1]),
            "mean": later.mean(0),
            "variance": later.var(0, ddof=1),
            "window_variance": _within(later, window),
            "shuffled": _within(later[order], window),
        }
    )


def _within(values: np.ndarray, window: int) -> np.ndarray:
    """(tokens,) mean variance within every window of rows, by running sums."""
    centred = values - values.mean(0)
    sums, squares = (np.concatenate([np.zeros((1, v.shape[1])), np.cumsum(v, 0)]) for v in (centred, centred**2))
    total, square = sums[window:] - sums[:-window], squares[window:] - squares[:-window]
    return ((square - total**2 / window) / (window - 1)).clip(0).mean(0)
