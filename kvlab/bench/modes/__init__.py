"""Benchmark modes, one per file; `measure` yields a bench's rows as they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvlab.bench.bench import Bench
from kvlab.bench.modes import batch, compress, decode, generate, memory, overhead, prefill, profile, together
from kvlab.bench.request import Mode
from kvlab.bench.rows import Row

MEASURE: dict[Mode, Callable[[Bench], Iterator[Row]]] = {
    "decode": decode.measure,
    "prefill": prefill.measure,
    "memory": memory.measure,
    "batch": batch.measure,
    "generate": generate.measure,
    "overhead": overhead.measure,
    "compress": compress.measure,
    "profile": profile.measure,
    "together": together.measure,
}
