"""Prediction of a token's next attention score from past ones (KeepKV, figure 2d)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.atlas.analysis.attention_rows import Rows, read_rows
from kvlab.trace.reader import Run

ALPHA, WINDOW = 0.9, 32  # kvlab's defaults; the paper gives neither
PREDICTORS = ("EMA, bias corrected", "cumulative mean", "sliding window mean", "last score")
EMA, CUMULATIVE, WINDOWED, LAST = PREDICTORS
COLUMNS = ["step", "predictor", "error"]


class Predictors:
    """Running predictions of every token's next score; a token's mean is over the rows that saw it.

    The EMA uses rows from `start` on and is corrected by 1 - alpha^n, where n is the number of rows that saw the token
    (KeepKV, equation 8, whose printed 1 - alpha^t counts steps that are not in its sum).
    """

    def __init__(self, tokens: int, start: int, alpha: float = ALPHA, window: int = WINDOW) -> None:
        self.start, self.alpha, self.window = start, alpha, window
        self.average, self.observed, self.total, self.count, self.recent, self.inside = np.zeros((6, tokens))
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, row: np.ndarray, seen: int) -> None:
        """Add a row of scores (tokens,) whose query saw the first `seen` tokens."""
        visible = np.arange(len(row)) < seen
        if len(self.rows) >= self.start:
            self.average = self.alpha * self.average + (1 - self.alpha) * row
            self.observed = self.observed + visible
        self.rows.append((row, visible))
        leaving = self.rows[-1 - self.window] if len(self.rows) > self.window else (0.0, 0.0)
        self.total, self.count = self.total + row, self.count + visible
        self.recent, self.inside = self.recent + row - leaving[0], self.inside + visible - leaving[1]

    def predict(self) -> dict[str, np.ndarray]:
        """(tokens,) prediction of each predictor."""
        return {
            EMA: self.average / (1 - self.alpha ** np.maximum(self.observed, 1)),
            CUMULATIVE: self.total / np.maximum(self.count, 1),
            WINDOWED: np.maximum(self.recent, 0) / np.maximum(self.inside, 1),
            LAST: self.rows[-1][0],
        }


def prediction_errors(rows: Rows, kind: str = "mass", alpha: float = ALPHA, window: int = WINDOW) -> pd.DataFrame:
    """Relative error of each predictor at every decode step, over all tokens except the newest: columns `COLUMNS`.

    The error is the sum of absolute errors over the sum of the whole row (a ratio to the rest would be meaningless if
    the newest token gets nearly everything). `kind` is `mass` (attention, where each row is centred by its own
    log-sum-exp as in kvlab's `ema`) or `score` (exp scores as printed).
    """
    values = rows.mass if kind == "mass" else rows.score
    if values is None:
        return pd.DataFrame(columns=COLUMNS)
    running = Predictors(values.shape[1], max(rows.first + 1 - window, 0), alpha, window)
    parts = []
    for row in range(len(values)):
        real, known = values[row].astype(np.float64), rows.seen[row] - 1
        whole = real.sum()
        if row > rows.first:
            for name, expected in running.predict().items():
                error = np.abs(expected - real)[:known].sum() / whole if whole > 0 else np.nan
                parts.append((row - rows.first, name, error))
        running.add(real, rows.seen[row])
    return pd.DataFrame(parts, columns=COLUMNS)


def prediction_errors_of_heads(run: Run, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """`prediction_errors` of many heads for both kinds, with columns kind, layer, head."""
    parts = []
    for layer, head in heads:
        rows = read_rows(run, layer, head)
        parts += [prediction_errors(rows, kind).assign(kind=kind, layer=layer, head=head) for kind in ("mass", "score")]
    known = [part for part in parts if len(part)]
    return pd.concat(known, ignore_index=True) if known else pd.DataFrame(columns=[*COLUMNS, "kind", "layer", "head"])
