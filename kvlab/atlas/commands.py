"""The commands that make what an exhibit lacks, written so that the results land where the dashboard looks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from kvlab.results.provenance import with_paper_preset
from kvlab.results.sources import BENCH_FOLDER, EVAL_FOLDER, Sources

SAMPLE = "needle_in_a_story"
Budgets = Sequence[float | int]


def compare_command(sources: Sources, methods: Sequence[str], budgets: Budgets = (0.2,), sample: str = SAMPLE) -> str:
    """`kvlab compare` over a prompt that ships with kvlab, recorded in full, each method under its paper's settings.

    `methods` are written as on the command line.
    """
    return _line(
        "compare",
        "--sample", sample, "--methods", ",".join(map(with_paper_preset, methods)), "--budgets", amounts(budgets),
        "--level", "full", "--out", folder(sources),
    )  # fmt: skip


def eval_command(sources: Sources, name: str, **options: str | int | Sequence[str]) -> str:
    """`kvlab eval` into `<runs>/eval/<name>`; options as on the command line, a list gives the option several times."""
    given: list[str] = []
    for option, value in options.items():
        values = [value] if isinstance(value, str | int) else list(value)
        for one in values:
            given += [f"--{option.replace('_', '-')}", str(one)]
    return _line("eval", *given, "--out", folder(sources, EVAL_FOLDER, name))


def bench_command(sources: Sources, *arguments: str) -> str:
    """`kvlab bench` with these arguments, its file in `<runs>/bench`."""
    return _line("bench", *arguments, "--out", folder(sources, BENCH_FOLDER))


def fill_command(sources: Sources, key: str) -> str:
    """`kvlab atlas fill` of one exhibit: its comparison over several texts, so that its claim can be judged."""
    return _line("atlas", "fill", "--only", key, "--out", folder(sources))


def folder(sources: Sources, *parts: str) -> str:
    """The folder of runs, or one below it, as short as it can be written from where the server was started."""
    path = sources.root.joinpath(*parts)
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else Path(relative).as_posix()


def amounts(budgets: Budgets) -> str:
    """Budgets as the command line takes them: `0.1,64`."""
    return ",".join(f"{budget:g}" if isinstance(budget, float) else str(budget) for budget in budgets)


def _line(*words: str) -> str:
    return shlex.join(["kvlab", *words])
