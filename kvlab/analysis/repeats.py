"""A batch of repeats: over many prompts of one text, how often each method at each budget still answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import pandas as pd

from kvlab.analysis.board import ask, fact_strip, verdicts, wanted
from kvlab.analysis.compare import at_same_bytes
from kvlab.analysis.facts import FATES
from kvlab.analysis.verdict import KINDS
from kvlab.errors import UserError
from kvlab.intervals import Interval, mean_intervals, share_interval
from kvlab.trace.labels import Labels
from kvlab.trace.reader import Run

MEASURES = ("mean_kl", "kl_answer", "top1_agreement", "live_bytes", "live_ratio")
LEVEL = 0.05  # of the sign test, shared among the rivals of one group: as likely as a 95 % interval to mislead
CELL = ["row", "column"]


@dataclass(frozen=True)
class Batch:
    """What a batch came to.

    Attributes:
        prompts: one row a run of every repeat that was begun, the full cache's too: `judged`.
        cells: one row a method and budget: see `cells`.
        count: how many repeats were asked for.
    """

    prompts: pd.DataFrame
    cells: pd.DataFrame
    count: int

    @property
    def references(self) -> pd.DataFrame:
        """One row a repeat: number, and the verdict on the full cache's own continuation."""
        return self.prompts.drop_duplicates("number")[["number", "reference"]]


def judged(runs: Sequence[Run], labels: Labels | None = None) -> pd.DataFrame:
    """One row a run of one repeat: `board.verdicts`, and what names the repeat.

    The columns number, of, depth, wording (from 1), draw, answer, comparison_id, reference, the verdict on the full
    cache, and kept, merged and dropped: the share of the fact's tokens in all heads, none where it was not recorded.

    Raises:
        UserError: the runs are no repeat of a batch, or nothing was asked of them.
    """
    record = runs[0].record
    asked_for = wanted(runs, labels or Labels())
    if record.repeat is None or asked_for is None:
        raise UserError(f"The comparison {record.comparison_id} is no repeat of a batch.")
    asked, planting = ask(runs, asked_for), record.repeat.planting
    fates = pd.DataFrame([fact_strip(run, asked)[list(FATES)].mean() for run in runs])
    return verdicts(runs, asked).assign(
        number=record.repeat.number,
        of=record.repeat.of,
        depth=planting.depth,
        wording=planting.wording + 1,
        draw=planting.draw,
        answer=asked_for.answer,
        comparison_id=record.comparison_id,
        reference=asked.reference.kind,
        **{fate: fates[fate].to_numpy() for fate in FATES},
    )


def batch_of(tables: Sequence[pd.DataFrame]) -> Batch:
    """The batch whose repeats are `tables` (`judged`); raises ValueError where there is none."""
    if not tables:
        raise ValueError("a batch has at least one repeat")
    prompts = pd.concat(tables, ignore_index=True)
    return Batch(prompts, cells(prompts), int(prompts["of"].iloc[0]))


def cells(prompts: pd.DataFrame) -> pd.DataFrame:
    """One row a compressed method and budget, over the repeats whose text is there.

    Columns: label, row, column, n, the counts right, nearly, wrong, share (right of n) with `_low` and `_high`
    (Wilson, 95 %), and with the same the means over prompts of `MEASURES` (None where nothing was measured). kept,
    merged and dropped are means over the `traced` prompts whose fact was followed.
    """
    compressed = prompts[prompts["method"] != "full"]
    return pd.DataFrame([_cell(group) for _, group in compressed.groupby(CELL, sort=False)])


def _cell(group: pd.DataFrame) -> dict[str, object]:
    ended = group[group["verdict"] != "unfinished"]
    first, counts = group.iloc[0], ended["verdict"].value_counts()
    told = {kind: int(counts.get(kind, 0)) for kind in KINDS[:3]}
    share = share_interval(told["right"], len(ended)) if len(ended) else None
    table = np.column_stack([pd.to_numeric(ended[name]).to_numpy(np.float64, na_value=np.nan) for name in MEASURES])
    means = mean_intervals(table) if len(ended) else [None] * len(MEASURES)
    line = {name: first[name] for name in ("label", "method", *CELL)} | {"n": len(ended)} | told
    for name, found in (("share", share), *zip(MEASURES, means, strict=True)):
        line |= _bounds(name, found)
    return line | ended[list(FATES)].astype(float).mean().to_dict() | {"traced": int(ended[FATES[0]].notna().sum())}


def _bounds(name: str, found: Interval | None) -> dict[str, object]:
    mean, low, high = (found.mean, found.low, found.high) if found else (None, None, None)
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def ranked(table: pd.DataFrame) -> tuple[list[pd.DataFrame], list[tuple[str, str]]]:
    """The cells in groups of about the same live bytes, most often right first; (label, reason) of each left out."""
    known = table[(table["n"] > 0) & table["live_bytes"].notna()]
    groups = [
        group.sort_values(["share", "mean_kl"], ascending=[False, True], kind="stable").reset_index(drop=True)
        for group in at_same_bytes(known)
    ]
    inside = {label for group in groups for label in group["label"]}
    left = [
        (row.label, "no repeat has ended" if row.n == 0 else "its bytes were not recorded")
        for row in table.itertuples()
        if row.label not in inside
    ]
    return groups, left


def told_apart(batch: Batch, group: pd.DataFrame) -> pd.DataFrame:
    """The first of a group of `ranked` against each other, over the prompts that both have.

    Columns: label, n, first (prompts that only the first gets right), other (that only the other does), p (sign test,
    exact, two-sided) and apart: whether p is below `LEVEL` over the number of rivals.
    """
    right = batch.prompts[batch.prompts["verdict"] != "unfinished"]
    table = right.pivot_table(index="number", columns=CELL, values="verdict", aggfunc="first", observed=True) == "right"
    known = right.pivot_table(index="number", columns=CELL, values="verdict", aggfunc="first", observed=True).notna()
    best = tuple(group.iloc[0][CELL])
    lines = []
    for _, row in group.iloc[1:].iterrows():
        here = tuple(row[CELL])
        both = known[best] & known[here]
        first, other = table.loc[both, best], table.loc[both, here]
        ahead, behind = int((first & ~other).sum()), int((other & ~first).sum())
        p = sign_test(ahead, behind)
        lines.append((row["label"], int(both.sum()), ahead, behind, p, p < LEVEL / (len(group) - 1)))
    return pd.DataFrame(lines, columns=["label", "n", "first", "other", "p", "apart"])


def sign_test(ahead: int, behind: int) -> float:
    """How likely a split at least as uneven is where either is as likely (exact, two-sided; McNemar)."""
    count, least = ahead + behind, min(ahead, behind)
    return min(1.0, 2 * sum(comb(count, k) for k in range(least + 1)) / 2**count) if count else 1.0


def single_prompts(batch: Batch, row: str, column: str) -> pd.DataFrame:
    """The rows of `Batch.prompts` behind one cell, by number."""
    here = (batch.prompts["row"] == row) & (batch.prompts["column"] == column)
    return batch.prompts[here].sort_values("number").reset_index(drop=True)
