"""Batch statistics: over many prompts, how often each method at each budget answers, and how close it stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.common.intervals import mean_intervals, share_interval
from kvlab.core import UserError, quote_value
from kvlab.trace.catalogue import list_repeats
from kvlab.trace.reader import Run, open_run
from kvlab.trace.user_labels import Labels, load_labels
from kvlab.views.frames.board import check_answer, expected_answer, fact_strip, places, verdicts
from kvlab.views.frames.compare import at_same_bytes, headline
from kvlab.views.frames.facts import FATES
from kvlab.views.frames.verdict import KINDS

MEASURES = ("mean_kl", "kl_answer", "top1_agreement", "live_bytes", "bytes_read", "live_ratio", "over_budget")
LEVEL = 0.05  # of the sign test, divided among the rivals of one group (Bonferroni)
CELL = ["row", "column"]
NOT_ASKED = "not asked"  # verdict for a prompt without an answer


@dataclass(frozen=True)
class Batch:
    """Results of a batch.

    Attributes:
        prompts: one row per run of every started repeat, including the full cache: `repeat_table`.
        cells: one row per method and budget: see `cells`.
        count: number of repeats requested.
    """

    prompts: pd.DataFrame
    cells: pd.DataFrame
    count: int

    @property
    def references(self) -> pd.DataFrame:
        """One row per repeat: number, and the verdict on the full cache's own continuation."""
        return self.prompts.drop_duplicates("number")[["number", "reference"]]

    @property
    def is_asked(self) -> bool:
        """Whether any prompt has an answer."""
        return bool(self.prompts["reference"].ne(NOT_ASKED).any())


def repeat_table(runs: Sequence[Run], labels: Labels | None = None) -> pd.DataFrame:
    """One row per run of one repeat: `board.verdicts` plus columns that identify the repeat.

    Columns number, of, name, depth, wording (from 1), draw (None without a planted needle), answer, comparison_id,
    reference (verdict on the full cache), and kept, merged, dropped: shares of the fact's tokens over all heads, None
    if not recorded. Verdicts on prompts without an answer are `NOT_ASKED`.

    Raises:
        UserError: the runs are no repeat of a batch.
    """
    record = runs[0].record
    if record.repeat is None:
        raise UserError(f"The comparison {record.comparison_id} is not part of a batch.")
    planting = record.repeat.planting
    answer = expected_answer(runs, labels or Labels())
    if answer is not None:
        asked = check_answer(runs, answer)
        fates = pd.DataFrame([fact_strip(run, asked)[list(FATES)].mean() for run in runs])
        mean_fates = {fate: fates[fate].to_numpy() for fate in FATES}
        table = verdicts(runs, asked).assign(answer=answer.answer, reference=asked.reference.kind, **mean_fates)
    else:
        table = headline(runs)
        rows, columns = zip(*places(runs), strict=True)
        ended = table["mean_kl"].notna() | (table["method"] == "full")
        table = table.assign(
            row=rows,
            column=columns,
            verdict=[NOT_ASKED if known else "unfinished" for known in ended],
            wrote="",
            wrong="",
            expected="",
            kl_answer=None,
            answer=None,
            reference=NOT_ASKED,
            **dict.fromkeys(FATES),
        )
    planted = dict.fromkeys(("depth", "wording", "draw"))
    if planting is not None:
        planted = {"depth": planting.depth, "wording": planting.wording + 1, "draw": planting.draw}
    repeat = {"number": record.repeat.number, "of": record.repeat.of, "name": record.repeat.description}
    return table.assign(**repeat, **planted, comparison_id=record.comparison_id)


def batch_prompts(root: Path, batch: str) -> pd.DataFrame:
    """`repeat_table` of every prompt of a batch in the folder of runs `root`; raises UserError if there is none."""
    entries = list_repeats(root, batch)
    if not entries:
        raise UserError(f"There is no batch {quote_value(batch)} in {root}: `kvlab compare --repeats 10` records one.")
    tables = [
        repeat_table([open_run(root / run.run_id) for run in entry.runs], load_labels(root, entry.comparison_id))
        for entry in entries
    ]
    return pd.concat(tables, ignore_index=True)


def build_batch(tables: Sequence[pd.DataFrame]) -> Batch:
    """The batch of these repeats (`repeat_table`); raises ValueError if there are none."""
    if not tables:
        raise ValueError("a batch has at least one repeat")
    prompts = pd.concat(tables, ignore_index=True)
    return Batch(prompts, cells(prompts), int(prompts["of"].iloc[0]))


def cells(prompts: pd.DataFrame) -> pd.DataFrame:
    """One row per compressed method and budget, over the finished repeats; of the full cache if it ran alone.

    Columns: label, row, column, ended (prompts), n (of these with an answer), the counts right, nearly, wrong, share
    (right of n) with `_low` and `_high` (Wilson, 95 %), and means over prompts of `MEASURES` with the same bounds (None
    if not measured). kept, merged and dropped are means over the `traced` prompts whose fact was traced.
    """
    compressed = prompts["method"] != "full"
    shown = prompts[compressed] if compressed.any() else prompts
    lines = []
    for _, group in shown.groupby(CELL, sort=False):
        ended = group[group["verdict"] != "unfinished"]
        counts = ended["verdict"].value_counts()
        tally = {kind: int(counts.get(kind, 0)) for kind in KINDS[:3]}
        judged = sum(tally.values())
        share = share_interval(tally["right"], judged) if judged else None
        ended = ended.assign(**{name: None for name in MEASURES if name not in ended})
        table = np.column_stack([pd.to_numeric(ended[name]).to_numpy(np.float64, na_value=np.nan) for name in MEASURES])
        means = mean_intervals(table) if len(ended) else [None] * len(MEASURES)
        line = group.iloc[0][["label", "method", *CELL]].to_dict() | {"ended": len(ended), "n": judged} | tally
        for name, found in (("share", share), *zip(MEASURES, means, strict=True)):
            mean, low, high = (found.mean, found.low, found.high) if found else (None, None, None)
            line |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        line |= ended[list(FATES)].astype(float).mean().to_dict()
        lines.append(line | {"traced": int(ended[FATES[0]].notna().sum())})
    return pd.DataFrame(lines)


def rank_cells(table: pd.DataFrame) -> tuple[list[pd.DataFrame], list[tuple[str, str]]]:
    """Cells grouped by about equal live bytes, and (label, reason) of each left out.

    Most often right first; without answers, closest to the full cache first.
    """
    asked = table["n"].gt(0).any()
    known = table[(table["n"] > 0 if asked else table["ended"] > 0) & table["live_bytes"].notna()]
    order = {"share": False, "mean_kl": True} if asked else {"mean_kl": True}
    groups = [
        group.sort_values(list(order), ascending=list(order.values()), kind="stable").reset_index(drop=True)
        for group in at_same_bytes(known)
    ]
    inside = {label for group in groups for label in group["label"]}
    left = []
    for row in table[~table["label"].isin(inside)].itertuples():
        why = "its bytes were not recorded" if pd.isna(row.live_bytes) else "no prompt with an answer has ended"
        left.append((row.label, "no repeat has ended" if row.ended == 0 else why))
    return groups, left


def compare_with_best(batch: Batch, group: pd.DataFrame) -> pd.DataFrame:
    """Compare the first cell of a group of `rank_cells` with each other cell over their common prompts.

    Columns: label, n, first (prompts that only the first gets right, or where it is closer if there are no answers),
    other (the reverse), p (exact two-sided sign test) and apart: p below `LEVEL` divided by the number of rivals.
    """
    verdict = batch.prompts["verdict"]
    distance = pd.to_numeric(batch.prompts["mean_kl"]).astype(float)
    right = verdict.eq("right").astype(float).where(verdict.isin(KINDS[:3]))
    scored = batch.prompts.assign(score=right if batch.is_asked else -distance).drop_duplicates(["number", *CELL])
    table = scored.set_index(["number", *CELL])["score"].unstack(CELL)
    best = tuple(group.iloc[0][CELL])
    lines = []
    for _, row in group.iloc[1:].iterrows():
        first = table[best]
        other = table[tuple(row[CELL])]
        ahead = int((first > other).sum())
        behind = int((other > first).sum())
        p = sign_test(ahead, behind)
        count = int((first.notna() & other.notna()).sum())
        lines.append((row["label"], count, ahead, behind, p, p < LEVEL / (len(group) - 1)))
    return pd.DataFrame(lines, columns=["label", "n", "first", "other", "p", "apart"])


def sign_test(ahead: int, behind: int) -> float:
    """Exact two-sided sign test (McNemar)."""
    count = ahead + behind
    least = min(ahead, behind)
    return min(1.0, 2 * sum(comb(count, k) for k in range(least + 1)) / 2**count) if count else 1.0


def single_prompts(batch: Batch, row: str, column: str) -> pd.DataFrame:
    """The rows of `Batch.prompts` behind one cell, by number."""
    here = (batch.prompts["row"] == row) & (batch.prompts["column"] == column)
    return batch.prompts[here].sort_values("number").reset_index(drop=True)
