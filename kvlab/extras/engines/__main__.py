"""`python -m kvlab.extras.engines`: OpenVINO GenAI's own eviction beside kvlab's methods on the same prompts."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli import run_alone
from kvlab.cli.options.model import Model
from kvlab.common.terminal import standard_error
from kvlab.core import Budget, UserError


def openvino(
    methods: Annotated[str | None, typer.Argument(help="comma-separated, such as h2o,snapkv:page=32")] = None,
    budget: Annotated[str, typer.Option(help="a share of the prompt, or tokens kept")] = "160",
    model: Model = "smollm2",
    write: Annotated[
        Path | None, typer.Option(help="put the table between the marks of this Markdown file, after every round")
    ] = None,
    python: Annotated[Path, typer.Option(help="the Python that has OpenVINO")] = Path(".venv-openvino/bin/python"),
    out: Annotated[Path, typer.Option(help="folder of rows, from which a killed comparison resumes")] = Path(
        "runs/eval/openvino"
    ),
    tasks: Annotated[str, typer.Option(help="that write one answer after one prompt")] = "needle,ruler_niah_multikey_1",
    length: Annotated[int, typer.Option(min=128, help="tokens of a prompt")] = 512,
    samples: Annotated[int, typer.Option(min=1, help="prompts of each task")] = 30,
    seed: Annotated[int, typer.Option(help="of the prompts")] = 8672,
    threads: Annotated[int, typer.Option(min=1, help="threads of either side")] = 1,
    timed: Annotated[int, typer.Option(min=0, help="prompts that every cache reads alone, for speed and memory")] = 1,
) -> None:
    """Compare OpenVINO GenAI's own eviction with kvlab's methods, at equal tokens kept, on the same prompts.

    Needs OpenVINO GenAI, which `make openvino` installs into an environment of its own, and a model in a GGUF file.
    docs/serving.md has the table.
    """
    if not python.is_file():
        raise UserError(f"{python} is missing: install OpenVINO with `make openvino`, or name its --python.")
    from kvlab.evaluation.job import shown_progress
    from kvlab.evaluation.request_parser import parse_request
    from kvlab.extras.engines.comparison import Answer, Comparison, compare_engines, compare_full_caches, time_engines
    from kvlab.extras.engines.modes import METHODS, kept_tokens
    from kvlab.extras.engines.table import markdown, write_engine_table

    amount = Budget.parse(budget).amount
    if isinstance(amount, str):
        raise UserError(f"--budget is a share of the prompt or a number of tokens here, not {budget}.")
    kept = kept_tokens(amount, length)
    request = parse_request(
        tasks=tasks,
        files=(),
        methods=methods or ",".join(METHODS),
        budgets=str(kept),
        lengths=str(length),
        depths=None,
        question_aware="yes",
        samples=samples,
        seed=seed,
        model=model,
        device="cpu",
    )
    comparison = Comparison(request, kept, python, threads, timed)
    errors = standard_error()
    full = compare_full_caches(comparison, out)
    answers = list[Answer]()
    with shown_progress(errors) as listener:
        for answers in compare_engines(comparison, out, listener, errors.print):
            if write is not None:
                write_engine_table(write, markdown(comparison, answers, None, full))
    times = time_engines(comparison, out, errors.print) if timed else None
    table = markdown(comparison, answers, times, full)
    if write is not None:
        write_engine_table(write, table)
    typer.echo(table)


if __name__ == "__main__":
    run_alone(openvino)
