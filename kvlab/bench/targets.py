"""Performance targets of kvlab, judged from measured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvlab.bench.rows import Row
from kvlab.core.budget import Amount
from kvlab.core.choice import MethodChoice

EVICTION = "h2o"  # the reference of merging methods at equal budget
OVER_EVICTION = f"decode step / {EVICTION}'s"
# Unequal layer budgets split a batch into several tables, also for eviction.
OVER_SAME_LAYERS = f"decode step / {EVICTION}'s with its budgets of layers and heads"
# Scores from the last queries of a prompt, and scores accumulated over all queries.
WINDOW_OVER_PLAIN = "prompt / plain transformers', windowed scores"
ALL_OVER_PLAIN = "prompt / plain transformers', accumulated scores"


def evicting(method: str, budget: Amount) -> MethodChoice:
    """`EVICTION` with the layer and head budgets of `method`."""
    return MethodChoice(method="compose", budget=budget, hyper_parameters={"allocate": method})


@dataclass(frozen=True)
class Target:
    """A target: `measured` yields (row, ratio) pairs; a ratio must be at least or at most `needed`."""

    name: str
    needed: float
    at_least: bool
    measured: Callable[[Sequence[Row]], Iterator[tuple[Row, float]]]

    def met(self, figure: float) -> bool:
        return figure >= self.needed if self.at_least else figure <= self.needed


def judge(rows: Sequence[Row], device: str) -> list[Row]:
    """One row per figure of each target of this device (`cpu` or `cuda`); `note` says whether it is met.

    A target without a figure gives one row of status `skipped`, as does every figure measured on another kind of
    device, where the experiment was run but the target does not apply.
    """
    kinds = {row.device.partition(":")[0] for row in rows} - {device, ""}
    elsewhere = ", ".join(sorted(kinds))
    judged = [judged for target in TARGETS[device] for judged in _judged(target, rows)]
    return [_unmeasured(row, elsewhere) for row in judged] if elsewhere else judged


def _unmeasured(row: Row, elsewhere: str) -> Row:
    promise = row.note.partition(": ")[2]
    return replace(row, status="skipped", note=f"unmeasured, exercised on {elsewhere}: {promise}")


def _judged(target: Target, rows: Sequence[Row]) -> Iterator[Row]:
    word = "at least" if target.at_least else "at most"
    found = list(target.measured([row for row in rows if row.status == "ok" and row.median is not None]))
    for row, figure in found:
        met = "met" if target.met(figure) else "NOT met"
        yield replace(
            row,
            mode="bar",
            figure=target.name,
            unit="ratio",
            median=figure,
            iqr=None,
            bound=target.needed,
            fraction_of_bound=None,
            ratio_to_full=None,
            note=f"{met}: {word} {target.needed:g}{_interval_note(row)}",
        )
    if not found:
        like = rows[0] if rows else Row("bar", target.name, "", "", 0, 0, "ratio")
        place = {name: getattr(like, name) for name in ("preset", "device", "versions", "timestamp", "dtype")}
        note = f"unmeasured: {word} {target.needed:g}"
        unmeasured = Row("bar", target.name, like.model, "", 0, 0, "ratio", bound=target.needed, note=note, **place)
        yield replace(unmeasured, status="skipped")


def _interval_note(row: Row) -> str:
    """The decision interval, if it is not 1 or if it matters for the figure."""
    if row.compress_every > 1:
        return f", deciding every {row.compress_every} steps"
    return ", deciding every step" if row.figure in (OVER_EVICTION, OVER_SAME_LAYERS) else ""


def _bytes(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Allocated bytes minus one block per head, over the budget's share of the full cache."""
    blocks = {_key(row): row for row in _of(rows, "memory", "one block a head")}
    for row in _of(rows, "memory", "allocated bytes"):
        block = blocks.get(_key(row))
        if block is None or row.budget_unit != "fraction" or row.budget in (None, 1.0) or not row.ratio_to_full:
            continue
        full = row.median / row.ratio_to_full
        yield row, (row.median - block.median) / (row.budget * full)


def _padding(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Allocated bytes minus one block per head, over live bytes: the padding of ragged heads."""
    live = {_key(row): row for row in _of(rows, "memory", "live bytes")}
    block = {_key(row): row for row in _of(rows, "memory", "one block a head")}
    for row in _of(rows, "memory", "allocated bytes"):
        if not row.method.startswith("full") and _key(row) in live and _key(row) in block:
            yield row, (row.median - block[_key(row)].median) / live[_key(row)].median


def _speedup(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Decode rate over the best full cache's."""
    for row in _of(rows, "decode", "decode rate"):
        if row.budget == 0.05 and row.ratio_to_full:
            yield row, row.ratio_to_full


def _against_bound(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """The speed-up over the best full cache, over the speed-up that the bandwidth bound allows."""
    full = {_place(r): r for r in _of(rows, "decode", "decode rate") if r.is_full}
    for row in _of(rows, "decode", "decode rate"):
        other = full.get(_place(row))
        if row.budget == 0.05 and row.ratio_to_full and row.bound and other is not None and other.bound:
            yield row, row.ratio_to_full / (row.bound / other.bound)


def _request(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    for row in _of(rows, "generate", "request rate"):
        if row.budget is not None and row.ratio_to_full and row.method == "zsmerge":
            yield row, row.ratio_to_full


def _measured(mode: str, figure: str) -> Callable[[Sequence[Row]], Iterator[tuple[Row, float]]]:
    """A function that yields rows with their own figure, such as a ratio measured round by round."""

    def find(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
        for row in _of(rows, mode, figure):
            yield row, row.median

    return find


def _of(rows: Sequence[Row], mode: str, figure: str) -> list:
    return [row for row in rows if row.mode == mode and row.figure == figure]


def _place(row: Row) -> tuple[object, ...]:
    return row.preset, row.model, row.batch, row.context, row.scale, row.compress_every


def _key(row: Row) -> tuple[object, ...]:
    return *_place(row), row.mode, row.method, row.budget


BYTES = Target("allocated bytes over budget x full, one block a head aside", 1.05, False, _bytes)
PADDING = Target("allocated bytes over live bytes, one block a head aside", 1.05, False, _padding)
LIGHT = Target("recording light, step over recording off", 1.05, False, _measured("overhead", "recording light / off"))
FULL = Target("recording full, step over recording off", 2.0, False, _measured("overhead", "recording full / off"))
PROMPTS = (
    Target("prompt over plain transformers', windowed scores", 1.3, False, _measured("prefill", WINDOW_OVER_PLAIN)),
    Target("the same, accumulated scores", 2.0, False, _measured("prefill", ALL_OVER_PLAIN)),
)
MERGING = "merging step over eviction's"
SAME_LAYERS = "the same, eviction with the method's budgets of layers and heads"


def _merging(most: float) -> tuple[Target, Target]:
    return (
        Target(MERGING, most, False, _measured("decode", OVER_EVICTION)),
        Target(SAME_LAYERS, most, False, _measured("decode", OVER_SAME_LAYERS)),
    )


TARGETS = {
    "cpu": (
        BYTES,
        PADDING,
        Target("decode rate at 5 % over the full cache's", 3.0, True, _speedup),
        *_merging(1.10),
        *PROMPTS,
        LIGHT,
        FULL,
    ),
    "cuda": (
        Target("speed-up at 5 % over the bandwidth bound's", 0.8, True, _against_bound),
        Target("4096+4096 at batch 8 and 5 %: rate over the full cache's", 2.2, True, _request),
        *_merging(1.05),
        BYTES,
        PADDING,
        LIGHT,
        FULL,
    ),
}
