"""Whether tokens evictable after the prompt return to the most attended (KeepKV, figure 2b)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvlab.analysis.lineage import fold
from kvlab.atlas.analysis.attention_rows import TOP, Rows, read_rows, top_share
from kvlab.common.errors import UserError
from kvlab.trace.reader import Run

LAST_QUERY, WINDOW_MEAN, OWN = "ranked by the last query", "ranked by the last prompt queries", "what the run evicted"
COLUMNS = ["step", "kind", "share", "ever", "mass"]


def returning(rows: Rows, evicted: np.ndarray, kind: str) -> pd.DataFrame:
    """One row per decode step: `share` of the evicted tokens in the step's top fifth, `ever` those that were so far,
    and `mass`, the full cache's attention on all evicted tokens.

    `evicted` is (tokens,) or (steps + 1, tokens) bool, the tokens gone before each step.
    """
    parts, ever = [], np.zeros(rows.mass.shape[1], bool)
    for row in range(rows.first + 1, len(rows.mass)):
        step = row - rows.first
        gone = evicted if evicted.ndim == 1 else evicted[min(step, len(evicted)) - 1]
        back = top_share(rows, row) & gone
        ever |= back
        count, mass = max(int(gone.sum()), 1), float(rows.mass[row, gone].sum())
        parts.append((step, kind, back.sum() / count, (ever & gone).sum() / count, mass))
    return pd.DataFrame(parts, columns=COLUMNS)


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
        gone = evicted_by_step(method, layer, head)
        if gone.any():
            own = read_rows(method, layer, head, with_history=False)
            parts.append(returning(own, gone[:, : own.mass.shape[1]], OWN))
    return pd.concat(parts, ignore_index=True)


def evicted_by_step(run: Run, layer: int, head: int) -> np.ndarray:
    """(steps, tokens) bool: the prompt tokens a run had evicted after each of its steps."""
    lineage = fold(run.select("events", layer, head), run.select("steps", layer, head))
    gone = lineage.death[None] <= lineage.steps[:, None]
    gone[:, run.record.prompt_tokens :] = False
    return gone


def returning_of_heads(model: Run, method: Run | None, heads: list[tuple[int, int]]) -> pd.DataFrame:
    """`returning_of_head` of many heads, with columns layer and head.

    Raises:
        UserError: `heads` is empty, as for a run in progress.
    """
    if not heads:
        raise UserError("The two runs have no head with recorded attention in common (yet): choose another run.")
    parts = [returning_of_head(model, method, *place).assign(layer=place[0], head=place[1]) for place in heads]
    return pd.concat(parts, ignore_index=True)
