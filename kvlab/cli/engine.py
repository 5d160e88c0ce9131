"""`kvlab serve-check --engine openvino`: OpenVINO GenAI's own eviction beside kvlab's methods on the same prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvlab.common.terminal import standard_error
from kvlab.core.errors import UserError

ENGINES = ("openvino",)
PYTHON = Path(".venv-openvino/bin/python")  # `make openvino` makes it


@dataclass(frozen=True)
class EngineOptions:
    """The engine, the prompts, and where rows are kept."""

    engine: Annotated[
        str, typer.Option(help="openvino: compare methods with that engine's own, at equal tokens kept")
    ] = ""
    python: Annotated[Path, typer.Option(help="the Python that has the engine")] = PYTHON
    out: Annotated[Path, typer.Option(help="folder of rows, from which a killed comparison resumes")] = Path(
        "runs/eval/openvino"
    )
    tasks: Annotated[str, typer.Option(help="that write one answer after one prompt")] = "needle,ruler_niah_multikey_1"
    length: Annotated[int, typer.Option(min=128, help="tokens of a prompt")] = 512
    samples: Annotated[int, typer.Option(min=1, help="prompts of each task")] = 30
    seed: Annotated[int, typer.Option(help="of the prompts")] = 8672
    threads: Annotated[int, typer.Option(min=1, help="threads of either side")] = 1
    timed: Annotated[int, typer.Option(min=0, help="prompts that every cache reads alone, for speed and memory")] = 1


def compare_with_engine(
    options: EngineOptions, methods: str | None, budget: str, model: str, write: Path | None
) -> None:
    """Run both sides and print the table, or put it between the marks of a document.

    Raises UserError for an unknown engine, one that is not installed, and a budget that it cannot keep.
    """
    if options.engine not in ENGINES:
        raise UserError(f"There is no engine {options.engine!r}: use {', '.join(ENGINES)}.")
    if not options.python.is_file():
        raise UserError(f"{options.python} is missing: install OpenVINO with `make openvino`, or name its --python.")
    from kvlab.core.budget import Budget
    from kvlab.evaluate.engines.comparison import Answer, Comparison, compare_engines, compare_full_caches, time_engines
    from kvlab.evaluate.engines.modes import METHODS, kept_tokens
    from kvlab.evaluate.engines.table import markdown, write_engine_table
    from kvlab.evaluate.progress import shown_progress
    from kvlab.evaluate.request_parser import parse_request

    amount = Budget.parse(budget).amount
    if isinstance(amount, str):
        raise UserError(f"--engine takes a share of the prompt or a number of tokens, not {budget}.")
    kept = kept_tokens(amount, options.length)
    request = parse_request(
        tasks=options.tasks, files=(), methods=methods or ",".join(METHODS), budgets=str(kept),
        lengths=str(options.length), depths=None, question_aware="yes", samples=options.samples, seed=options.seed,
        model=model, device="cpu",
    )  # fmt: skip
    comparison = Comparison(request, kept, options.python, options.threads, options.timed)
    errors = standard_error()
    full, answers = compare_full_caches(comparison, options.out), list[Answer]()
    with shown_progress(errors) as listener:
        for answers in compare_engines(comparison, options.out, listener, errors.print):
            if write is not None:
                write_engine_table(write, markdown(comparison, answers, None, full))
    times = time_engines(comparison, options.out, errors.print) if options.timed else None
    table = markdown(comparison, answers, times, full)
    if write is not None:
        write_engine_table(write, table)
    typer.echo(table)
