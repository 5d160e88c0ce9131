"""`kvlab lm-eval`: evaluate methods and budgets on tasks of lm-evaluation-harness, with rows as `kvlab eval`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvlab.cli.eval import DEFAULT_BUDGETS, DEFAULT_METHODS
from kvlab.cli.options.groups import grouped
from kvlab.cli.options.model import ChatWay, ModelOptions
from kvlab.cli.options.plan_check import Force, check_fits


@dataclass(frozen=True)
class PlainTextOptions(ModelOptions):
    """Options with plain text as the default, as the harness's prompts are texts to be continued."""

    chat: ChatWay = "no"


@grouped
def lm_eval(
    out: Annotated[
        Path,
        typer.Option(help="folder of results, from which a killed run resumes; the dashboard reads runs/eval/NAME"),
    ],
    tasks: Annotated[str, typer.Option(help="tasks of the harness, such as piqa,openbookqa, or of --include-path")],
    include_path: Annotated[
        Path | None, typer.Option(help="a folder with your own tasks in the harness's YAML")
    ] = None,
    methods: Annotated[str, typer.Option(help="such as h2o,keepkv:preset=paper")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="fractions of the context, or slots per KV head")] = DEFAULT_BUDGETS,
    protocol: Annotated[
        str,
        typer.Option(help="decode: compress the context, then decode; simulated: token by token from the start"),
    ] = "decode",
    hold_back: Annotated[
        int, typer.Option(help="decode: last tokens of the context that follow after compression")
    ] = 1,
    limit: Annotated[int | None, typer.Option(help="prompts of each task; default: all")] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="worked examples; default: each task's setting")] = None,
    metric: Annotated[str, typer.Option(help="METRIC or METRIC,FILTER; default: each task's first")] = "",
    seed: Annotated[int, typer.Option(help="seed for choosing worked examples")] = 1234,
    batch: Annotated[int | None, typer.Option(help="batch size, of contexts of equal length")] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option(help="prefill contexts in chunks of N tokens; an error for methods this would change")
    ] = None,
    *,
    loading: PlainTextOptions,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Score compressed caches on tasks of lm-eval (pip install 'kvlab\\[lm-eval]')."""
    # Disables the harness's progress bars; read when tqdm is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from pydantic import ValidationError

    from kvlab.cli.options.tables import print_summary
    from kvlab.common.errors import UserError
    from kvlab.common.terminal import standard_error
    from kvlab.common.validation import as_option, in_one_sentence
    from kvlab.evaluate.progress import shown_progress
    from kvlab.lmeval.request import LmEvalRequest
    from kvlab.lmeval.run import run_lm_eval
    from kvlab.methods import spec
    from kvlab.requests.compare import CompareRequest

    try:
        request = LmEvalRequest(
            tasks=tuple(spec.split_list(tasks)),
            include_path=include_path,
            choices=spec.parse_choices(methods, budgets),
            protocol=protocol,  # type: ignore[arg-type]  # pydantic validates it
            hold_back=hold_back,
            limit=limit,
            num_fewshot=num_fewshot,
            metric=metric,
            seed=seed,
            batch_rows=batch,
            prefill_chunk=prefill_chunk,
            **loading.fields,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from error
    if not force:  # only the model and one token: the contexts' lengths are known after the harness has built them
        weights = {"model": request.model, **request.loading}
        smallest = CompareRequest(prompt="-", choices=request.all_choices, max_new_tokens=1, level="off", **weights)
        check_fits(smallest, Path())
    errors = standard_error()
    with shown_progress(errors) as listener:
        result = run_lm_eval(request, out, on_progress=listener)
    for note in result.notes:
        errors.print(note)
    print_summary(result.rows, result.notes, out, as_json)
