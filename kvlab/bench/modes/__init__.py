"""Benchmark modes; `measure` yields a bench's rows as they are measured."""

from collections.abc import Callable, Iterator

from kvlab.bench.bench import Bench
from kvlab.bench.modes import decode, generate, memory, prefill, together
from kvlab.bench.request import Mode
from kvlab.bench.rows import Row

MEASURE: dict[Mode, Callable[[Bench], Iterator[Row]]] = {
    "decode": decode.measure,
    "prefill": prefill.measure,
    "memory": memory.measure,
    "generate": generate.measure,
    "together": together.measure,
}
