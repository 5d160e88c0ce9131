"""What kvlab promises, judged from measured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvlab.bench.rows import Row
from kvlab.requests.budget import Amount
from kvlab.requests.compare import MethodChoice

EVICTION = "h2o"  # what a merging method is compared with at equal budget
OVER_EVICTION = f"decode step / {EVICTION}'s"
# A method that gives its layers unequal budgets splits a batch into several tables, which eviction would do as well.
OVER_SAME_LAYERS = f"decode step / {EVICTION}'s with its budgets of layers and heads"
# Scores that look at the last queries of a prompt, and those that add up what all of them gave.
WINDOW_OVER_PLAIN = "prompt / plain transformers', windowed scores"
ALL_OVER_PLAIN = "prompt / plain transformers', accumulated scores"


def evicting(method: str, budget: Amount) -> MethodChoice:
    """Eviction as `EVICTION` does it, with the budgets that `method` gives to layers and heads."""
    return MethodChoice(method="compose", budget=budget, hyper_parameters={"allocate": method})


@dataclass(frozen=True)
class Bar:
    """One promise: `measured` finds (row, figure) pairs; a figure is met when it is at least or at most `needed`."""

    name: str
    unit: str
    needed: float
    at_least: bool
    measured: Callable[[Sequence[Row]], Iterator[tuple[Row, float]]]

    def met(self, figure: float) -> bool:
        """Whether the figure clears the bar."""
        return figure >= self.needed if self.at_least else figure <= self.needed


def judge(rows: Sequence[Row], device: str) -> list[Row]:
    """A row for every figure that a bar of this device (`cpu` or `cuda`) is about, `note` saying whether it is met.

    A bar without a figure gives one row of status `skipped`; so does every figure measured on another kind of device,
    where the experiment was exercised and its promise not tested.
    """
    kinds = {row.device.partition(":")[0] for row in rows} - {device, ""}
    elsewhere = ", ".join(sorted(kinds))
    judged = [judged for bar in BARS[device] for judged in _judged(bar, rows)]
    return [_unmeasured(row, elsewhere) for row in judged] if elsewhere else judged


def _unmeasured(row: Row, elsewhere: str) -> Row:
    promise = row.note.partition(": ")[2]
    return replace(row, status="skipped", note=f"unmeasured, exercised on {elsewhere}: {promise}")


def _judged(bar: Bar, rows: Sequence[Row]) -> Iterator[Row]:
    word = "at least" if bar.at_least else "at most"
    found = list(bar.measured([row for row in rows if row.status == "ok" and row.median is not None]))
    for row, figure in found:
        said = f"{'met' if bar.met(figure) else 'NOT met'}: {word} {bar.needed:g}"
        said += _often(row)
        yield replace(
            row,
            mode="bar",
            figure=bar.name,
            unit=bar.unit,
            median=figure,
            iqr=None,
            bound=bar.needed,
            fraction_of_bound=None,
            ratio_to_full=None,
            note=said,
        )
    if not found:
        like = rows[0] if rows else Row("bar", bar.name, "", "", 0, 0, bar.unit)
        place = {name: getattr(like, name) for name in ("preset", "device", "versions", "timestamp", "dtype")}
        unmeasured = Row("bar", bar.name, like.model, "", 0, 0, bar.unit, bound=bar.needed, status="skipped", **place)
        yield replace(unmeasured, note=f"unmeasured: {word} {bar.needed:g}")


def _often(row: Row) -> str:
    """How often a method decided, where that is not as ever or where it is what the figure is about."""
    if row.compress_every > 1:
        return f", deciding every {row.compress_every} steps"
    return ", deciding every step" if row.figure in (OVER_EVICTION, OVER_SAME_LAYERS) else ""


def _bytes(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Allocated bytes less one block a head, over the budget's share of the full cache."""
    blocks = {_key(row): row for row in _of(rows, "memory", "one block a head")}
    for row in _of(rows, "memory", "allocated bytes"):
        block = blocks.get(_key(row))
        if block is None or row.budget_unit != "fraction" or row.budget in (None, 1.0) or not row.ratio_to_full:
            continue
        full = row.median / row.ratio_to_full
        yield row, (row.median - block.median) / (row.budget * full)


def _padding(rows: Sequence[Row]) -> Iterator[tuple[Row, float]]:
    """Allocated bytes less one block a head, over live bytes: what ragged heads waste."""
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
    """The speed-up over the best full cache, over the speed-up that the bytes to move would allow."""
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
    """Rows whose own figure the bar is about, such as a ratio taken round by round."""

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


BYTES = Bar("allocated bytes over budget x full, one block a head aside", "ratio", 1.05, False, _bytes)
PADDING = Bar("allocated bytes over live bytes, one block a head aside", "ratio", 1.05, False, _padding)
LIGHT = Bar(
    "recording light, step over recording off", "ratio", 1.05, False, _measured("overhead", "recording light / off")
)
FULL = Bar(
    "recording full, step over recording off", "ratio", 2.0, False, _measured("overhead", "recording full / off")
)
PROMPTS = (
    Bar(
        "prompt over plain transformers', windowed scores", "ratio", 1.3, False, _measured("prefill", WINDOW_OVER_PLAIN)
    ),
    Bar("the same, accumulated scores", "ratio", 2.0, False, _measured("prefill", ALL_OVER_PLAIN)),
)
MERGING = "merging step over eviction's"
SAME_LAYERS = "the same, eviction with the method's budgets of layers and heads"


def _merging(most: float) -> tuple[Bar, Bar]:
    return (
        Bar(MERGING, "ratio", most, False, _measured("decode", OVER_EVICTION)),
        Bar(SAME_LAYERS, "ratio", most, False, _measured("decode", OVER_SAME_LAYERS)),
    )


BARS = {
    "cpu": (
        BYTES,
        PADDING,
        Bar("decode rate at 5 % over the full cache's", "ratio", 3.0, True, _speedup),
        *_merging(1.10),
        *PROMPTS,
        LIGHT,
        FULL,
    ),
    "cuda": (
        Bar("speed-up at 5 % over the bandwidth bound's", "ratio", 0.8, True, _against_bound),
        Bar("4096+4096 at batch 8 and 5 %: rate over the full cache's", "ratio", 2.2, True, _request),
        *_merging(1.05),
        BYTES,
        PADDING,
        LIGHT,
        FULL,
    ),
}
