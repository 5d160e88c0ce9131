"""Benchmark modes; `measure` yields a bench's rows as they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvlab.bench.bench import Bench
from kvlab.bench.modes import compress, decode, generate, memory, overhead, prefill, profile, together
from kvlab.bench.request import Mode
from kvlab.bench.rows import Row

MEASURE: dict[Mode, Callable[[Bench], Iterator[Row]]] = {
    "decode": decode.measure,
    "prefill": prefill.measure,
    "memory": memory.measure,
    "batch": decode.measure_batches,
    "generate": generate.measure,
    "overhead": overhead.measure,
    "compress": compress.measure,
    "profile": profile.measure,
    "together": together.measure,
}
