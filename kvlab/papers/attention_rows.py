"""Recorded attention rows of one head: concentration, variance, return of evicted tokens, and prediction.

A row is one query's attention over all tokens (a KV head's mean over its query heads). `Rows` come from a comparison's
probe (`Run.history`, including the last prompt queries) or from the run's own steps.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.frames.lineage import fold

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
    def visible(self) -> np.ndarray:
        """(rows,) number of tokens visible to each query."""
        return self.prompt_tokens - self.first + np.arange(len(self.mass))


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
    heads = run.record.recording.of_heads(run.record.model.num_key_value_heads)
    found = []
    for layer in range(run.record.model.num_hidden_layers):
        # All recorded heads of a layer are in one file; a cancelled run may lack some.
        try:
            read_rows(run, layer, heads[0])
        except UserError:
            continue
        found += [(layer, head) for head in heads]
    return found


def concentration(rows: Rows, most_rows: int = 16) -> np.ndarray:
    """(rows, shares) mass held by the largest `SHARES` of the tokens, from step 0 on; NaN without attention."""
    chosen = np.unique(np.linspace(rows.first, len(rows.mass) - 1, most_rows).round().astype(int))
    curves = []
    for row in chosen:
        mass = np.sort(rows.mass[row, : rows.visible[row]])[::-1]
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
    total = sums[window:] - sums[:-window]
    square = squares[window:] - squares[:-window]
    return ((square - total**2 / window) / (window - 1)).clip(0).mean(0)


LAST_QUERY = "ranked by the last query"
WINDOW_MEAN = "ranked by the last prompt queries"
OWN = "what the run evicted"
RETURN_COLUMNS = ["step", "kind", "share", "ever", "mass"]


def returning(rows: Rows, evicted: np.ndarray, kind: str) -> pd.DataFrame:
    """One row per decode step: `share` of the evicted tokens in the step's top fifth, `ever` those that were so far,
    and `mass`, the attention on all evicted tokens with nothing dropped.

    `evicted` is (tokens,) or (steps + 1, tokens) bool, the tokens gone before each step.
    """
    parts = []
    ever = np.zeros(rows.mass.shape[1], bool)
    for row in range(rows.first + 1, len(rows.mass)):
        step = row - rows.first
        gone = evicted if evicted.ndim == 1 else evicted[min(step, len(evicted)) - 1]
        # The fifth of the tokens with the most attention in this row.
        visible = rows.visible[row]
        most = max(1, int(np.ceil(TOP * visible)))
        top = np.zeros(rows.mass.shape[1], bool)
        top[np.argpartition(-rows.mass[row, :visible], most - 1)[:most]] = True
        back = top & gone
        ever |= back
        count = max(int(gone.sum()), 1)
        mass = float(rows.mass[row, gone].sum())
        parts.append((step, kind, back.sum() / count, (ever & gone).sum() / count, mass))
    return pd.DataFrame(parts, columns=RETURN_COLUMNS)


def to_be_evicted(rows: Rows, score: np.ndarray, rate: float = TOP) -> np.ndarray:
    """(tokens,) bool: the prompt tokens outside the best `rate` by `score` (prompt tokens,)."""
    count = max(1, int(np.ceil(rate * rows.prompt_tokens)))
    evicted = np.zeros(rows.mass.shape[1], bool)
    evicted[np.argsort(-score, kind="stable")[count:]] = True
    return evicted


def returning_of_head(model: Run, method: Run | None, layer: int, head: int) -> pd.DataFrame:
    """`returning` of one head, ranked by the last query, by the last prompt queries if the probe recorded them, and
    for the tokens actually evicted by the `method`'s run."""
    rows = read_rows(model, layer, head)
    prompt = rows.mass[: rows.first + 1, : rows.prompt_tokens]
    parts = [returning(rows, to_be_evicted(rows, prompt[-1]), LAST_QUERY)]
    if rows.first:
        visible = (prompt > 0).sum(0).clip(1)
        parts.append(returning(rows, to_be_evicted(rows, prompt.sum(0) / visible), WINDOW_MEAN))
    if method is not None:
        # (steps, tokens) bool: the prompt tokens that the run had evicted after each of its steps
        lineage = fold(method.select("events", layer, head), method.select("steps", layer, head))
        gone = lineage.death[None] <= lineage.steps[:, None]
        gone[:, method.record.prompt_tokens :] = False
        if gone.any():
            rows_of_method = read_rows(method, layer, head, with_history=False)
            parts.append(returning(rows_of_method, gone[:, : rows_of_method.mass.shape[1]], OWN))
    return pd.concat(parts, ignore_index=True)


def returning_of_heads(model: Run, method: Run | None, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """`returning_of_head` of many heads, with columns layer and head.

    Raises:
        UserError: `heads` is empty, as for a run in progress.
    """
    if not heads:
        raise UserError("The two runs have no head with recorded attention in common (yet): choose another run.")
    parts = [returning_of_head(model, method, *place).assign(layer=place[0], head=place[1]) for place in heads]
    return pd.concat(parts, ignore_index=True)


# kvlab's defaults; the paper gives neither
ALPHA = 0.9
WINDOW = 32
PREDICTORS = ("EMA, bias corrected", "cumulative mean", "sliding window mean", "last score")
EMA, CUMULATIVE, WINDOWED, LAST = PREDICTORS
ERROR_COLUMNS = ["step", "predictor", "error"]


class Predictors:
    """Running predictions of every token's next score; a token's mean is over the rows that saw it.

    The EMA uses rows from `start` on and is corrected by 1 - alpha^n, where n is the number of rows that saw the token
    (KeepKV, equation 8, whose printed 1 - alpha^t counts steps that are not in its sum).
    """

    def __init__(self, tokens: int, start: int, alpha: float = ALPHA, window: int = WINDOW) -> None:
        self.start = start
        self.alpha = alpha
        self.window = window
        self.average, self.observed, self.total, self.count, self.recent, self.inside = np.zeros((6, tokens))
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, row: np.ndarray, tokens: int) -> None:
        """Add a row of scores (tokens,) whose query saw the first `tokens` tokens."""
        visible = np.arange(len(row)) < tokens
        if len(self.rows) >= self.start:
            self.average = self.alpha * self.average + (1 - self.alpha) * row
            self.observed = self.observed + visible
        self.rows.append((row, visible))
        leaving = self.rows[-1 - self.window] if len(self.rows) > self.window else (0.0, 0.0)
        self.total = self.total + row
        self.count = self.count + visible
        self.recent = self.recent + row - leaving[0]
        self.inside = self.inside + visible - leaving[1]

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
        return pd.DataFrame(columns=ERROR_COLUMNS)
    running = Predictors(values.shape[1], max(rows.first + 1 - window, 0), alpha, window)
    parts = []
    for row in range(len(values)):
        real = values[row].astype(np.float64)
        known = rows.visible[row] - 1
        whole = real.sum()
        if row > rows.first:
            for name, expected in running.predict().items():
                error = np.abs(expected - real)[:known].sum() / whole if whole > 0 else np.nan
                parts.append((row - rows.first, name, error))
        running.add(real, rows.visible[row])
    return pd.DataFrame(parts, columns=ERROR_COLUMNS)


def prediction_errors_of_heads(run: Run, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """`prediction_errors` of many heads for both kinds, with columns kind, layer, head."""
    parts = []
    for layer, head in heads:
        rows = read_rows(run, layer, head)
        parts += [prediction_errors(rows, kind).assign(kind=kind, layer=layer, head=head) for kind in ("mass", "score")]
    known = [part for part in parts if len(part)]
    return (
        pd.concat(known, ignore_index=True)
        if known
        else pd.DataFrame(columns=[*ERROR_COLUMNS, "kind", "layer", "head"])
    )
