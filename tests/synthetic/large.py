"""Synthetic runs as large as real ones of a long prompt, for measuring the dashboard."""

from __future__ import annotations

import os
from pathlib import Path

from kvlab.trace.catalogue import upsert
from kvlab.trace.record import FILE, read_record, write_record
from tests.synthetic.runs import write_synthetic_run

LARGE_RUNS = 3
HEADS, STEPS = 8, 16
EVENTS = 1_000_000


def write_large_runs(
    root: Path, *, layers: int = 32, tokens: int = 32_768, events: int = EVENTS, count: int = LARGE_RUNS
) -> list[str]:
    """The ids of `count` runs in one comparison; about `events` slots leave each of them in all.

    The first is written; the others are that run under other names, their files hard links where the disk can.
    """
    leaving = min(max(1, events // (layers * HEADS)), tokens // 2)
    budget = tokens - max(0, leaving - STEPS)
    first = write_synthetic_run(
        root, layers=layers, heads=HEADS, prompt_tokens=tokens, steps=STEPS, budget=budget, comparison_id="large"
    )
    return [first.name, *(_twin(first, f"{first.name}-{number}") for number in range(2, count + 1))]


def _twin(first: Path, name: str) -> str:
    record = read_record(first).model_copy(update={"run_id": name})
    for file in sorted(path for path in first.rglob("*") if path.is_file()):
        target = first.parent / name / file.relative_to(first)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.name != FILE:
            _link(file, target)
    write_record(first.parent / name, record)
    upsert(first.parent, record)
    return name


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        target.write_bytes(file.read_bytes())
