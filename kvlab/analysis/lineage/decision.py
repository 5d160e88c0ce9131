"""The prompt compression decision of one head: which tokens stayed, which nearly did, and the budget a token needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.trace.reader import Run
from kvlab.views.frames.autopsy import FATES
from kvlab.views.frames.lineage import NEVER, Lineage

NEAR = 10  # tokens named as nearly kept
FRAMES = 24


@dataclass(frozen=True)
class Cutoff:
    """The cutoff of the decision. `line` is the highest score among evicted tokens, NaN if none left.

    `placed`: tokens kept with a lower score because they are sinks or recent; `odd`: tokens elsewhere on the wrong side
    of the cutoff, for which the score alone does not explain the decision.
    """

    budget: int
    line: float
    placed: int
    odd: int

    @property
    def by_score(self) -> bool:
        """Whether score and position together explain which tokens stayed."""
        return self.odd == 0


def decision(run: Run, layer: int, head: int, lineage: Lineage) -> pd.DataFrame:
    """One row per token considered: token, text, score, kept, fate (one of `FATES`), rank, placed.

    `rank` is 1 for the highest score, if tied of the later token. `placed`: kept with a lower score than one that left.

    Raises:
        UserError: the decision was not recorded.
    """
    table = by_rank(run, layer, head)
    owner = lineage.owners(decision_step(lineage))[table["token"]]
    table["fate"] = np.where(table["kept"], FATES[0], np.where(owner >= 0, FATES[1], FATES[2]))
    texts = run.tokens.query("phase != 'free'").set_index("position")["text"]
    return table.assign(text=texts.reindex(table["token"]).fillna("").to_numpy())


def decisions(run: Run) -> dict[tuple[int, int], pd.DataFrame]:
    """`by_rank` of every layer and head whose decision was recorded."""
    model = run.record.model
    tables = {}
    for layer in run.record.recording.of_layers(range(model.num_hidden_layers)):
        for head in run.record.recording.of_heads(model.num_key_value_heads):
            try:
                tables[layer, head] = by_rank(run, layer, head)
            except UserError:
                break
    return tables


def by_rank(run: Run, layer: int, head: int) -> pd.DataFrame:
    """As `decision`, without texts and fates; raises the same errors."""
    score, kept = run.decision(layer, head)
    tokens = np.flatnonzero(~np.isnan(score))
    score = score[tokens]
    kept = kept[tokens] > 0
    order = np.lexsort((-tokens, -score))
    rank = np.empty(len(tokens), np.int64)
    rank[order] = np.arange(1, len(tokens) + 1)
    best_lost = rank[~kept].min(initial=len(tokens) + 1)
    placed = kept & (rank > best_lost)
    return pd.DataFrame({"token": tokens, "score": score, "kept": kept, "rank": rank, "placed": placed})


def decision_step(lineage: Lineage) -> int:
    """Step of the prompt's decision: 0, or 1 for a method that waits and first evicts there.

    A head that keeps the whole prompt decided right after the prompt.
    """
    return 0 if (lineage.leave == 0).any() or not (lineage.leave == 1).any() else 1


def cutoff(table: pd.DataFrame) -> Cutoff:
    """The cutoff in `decision`'s table.

    Sinks and recent tokens, i.e. the contiguous kept tokens at both ends of the prompt, stay because of their position.
    """
    kept = table["kept"].to_numpy()
    lost = table.loc[~table["kept"], "score"]
    placed = table["placed"].to_numpy()
    edge = _edges(kept)
    odd = int((placed & ~edge).sum())
    return Cutoff(int(kept.sum()), float(lost.max()) if len(lost) else np.nan, int(placed.sum()), odd)


def _edges(kept: np.ndarray) -> np.ndarray:
    """Kept tokens in the contiguous runs at the beginning and the end."""
    gaps = np.flatnonzero(~kept)
    edge = kept.copy()
    if len(gaps):
        edge[gaps[0] : gaps[-1] + 1] = False
    return edge


def nearly_kept(table: pd.DataFrame, count: int = NEAR) -> pd.DataFrame:
    """The tokens that left with the highest scores, best first."""
    return table[~table["kept"]].sort_values("rank").head(count)


def budget_for(table: pd.DataFrame, tokens: Sequence[int]) -> int | None:
    """Slots this head would need to keep all of `tokens`, given the same tokens kept by position.

    That is its current slots plus one per evicted token ranked at or above the lowest of `tokens`. None if the score
    alone does not explain the decision, or it did not cover one of them.
    """
    chosen = table[table["token"].isin(tokens)]
    if len(chosen) < len(set(tokens)) or not cutoff(table).by_score:
        return None
    lost = table[~table["kept"]]
    lowest = chosen.loc[~chosen["kept"], "rank"].max()
    return int(table["kept"].sum()) + (0 if np.isnan(lowest) else int((lost["rank"] <= lowest).sum()))


def budgets_by_head(tables: Mapping[tuple[int, int], pd.DataFrame], tokens: Sequence[int]) -> pd.DataFrame:
    """One row per layer and head of `tables` (`decision`): its `slots`, and those `needed` to keep all of `tokens`."""
    rows = [
        {"layer": layer, "head": head, "slots": int(table["kept"].sum()), "needed": budget_for(table, tokens)}
        for (layer, head), table in tables.items()
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "slots", "needed"]).astype({"needed": "Int64"})


def replay(lineage: Lineage, table: pd.DataFrame, frames: int = FRAMES) -> Lineage:
    """Animate the decision as a lineage of `frames` steps: tokens leave in equal portions, the lowest score first.

    Step 0 is the full prompt. Tokens that left after the decision are still present.
    """
    step = decision_step(lineage)
    tokens = int(lineage.seen[lineage.steps == step][0])
    left = table.loc[~table["kept"]].sort_values("rank", ascending=False)["token"].to_numpy()
    portion = 1 + np.arange(len(left)) * frames // max(len(left), 1)
    leave = np.full(tokens, NEVER)
    parent = np.full(tokens, -1)
    kind = np.zeros(tokens, np.uint8)
    leave[left] = portion
    parent[left] = lineage.parent[left]
    kind[left] = lineage.kind[left]
    absorb = np.full(tokens, NEVER)
    merged = left[parent[left] >= 0]
    np.minimum.at(absorb, parent[merged], leave[merged])
    roots = np.arange(tokens)
    for _ in range(tokens.bit_length()):
        further = np.where(parent[roots] >= 0, parent[roots], roots)
        if np.array_equal(further, roots):
            break
        roots = further
    steps = np.arange(frames + 1 if len(left) else 1)
    death = np.where((parent[roots] < 0) & (leave[roots] != NEVER), leave[roots], NEVER)
    birth = np.zeros(tokens, np.int64)
    return Lineage(steps, np.full(len(steps), tokens), birth, leave, kind, parent, absorb, death)
