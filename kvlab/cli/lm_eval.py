"""`kvlab lm-eval`: tasks of lm-eval under methods and budgets, with results like those of `kvlab eval`."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from kvlab.cli.eval import DEFAULT_BUDGETS, DEFAULT_METHODS
from kvlab.cli.options.model import ChatWay, ModelOptions
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.cli.options.tables import print_summary
from kvlab.common.terminal import standard_error
from kvlab.core import UserError, as_option, in_one_sentence
from kvlab.requests.compare import CompareRequest


@dataclass(frozen=True)
class PlainTextOptions(ModelOptions):
    """Model options; lm-eval's prompts are plain text by default."""

    chat: ChatWay = "no"


@group_parameters
def lm_eval(
    out: Annotated[
        Path, typer.Option(help="results folder, from which a killed run resumes; the dashboard reads runs/eval/NAME")
    ],
    tasks: Annotated[str, typer.Option(help="lm-eval's tasks, such as piqa,openbookqa, or tasks in --include-path")],
    include_path: Annotated[Path | None, Setting("a folder with your own tasks in lm-eval's YAML")] = None,
    methods: Annotated[str, typer.Option(help="such as h2o,keepkv:preset=paper")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="fractions of the context, or slots per KV head")] = DEFAULT_BUDGETS,
    protocol: Annotated[
        str, Setting("decode to compress the context and then decode, simulated to feed all text token by token")
    ] = "decode",
    hold_back: Annotated[int, Setting("last context tokens fed after compression")] = 1,
    limit: Annotated[int | None, typer.Option(help="prompts per task; default: all")] = None,
    num_fewshot: Annotated[int | None, Setting("few-shot examples, by default each task's own number")] = None,
    metric: Annotated[str, Setting("METRIC or METRIC,FILTER, by default each task's first")] = "",
    seed: Annotated[int, Setting("seed for the choice of few-shot examples")] = 1234,
    *,
    loading: PlainTextOptions,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Score compressed caches on tasks of lm-eval (pip install 'kvlab\\[lm-eval]')."""
    # Hides lm-eval's progress bars, one per task and method; tqdm reads it when imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from kvlab.core.methods import spec
    from kvlab.evaluation.job import shown_progress
    from kvlab.evaluation.lm_eval.request import LmEvalRequest
    from kvlab.evaluation.lm_eval.run import run_lm_eval

    try:
        request = LmEvalRequest(
            tasks=tuple(spec.split_list(tasks)),
            include_path=include_path,
            choices=spec.parse_choices(methods, budgets),
            protocol=protocol,
            hold_back=hold_back,
            limit=limit,
            num_fewshot=num_fewshot,
            metric=metric,
            seed=seed,
            **asdict(loading),
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from error
    if not force:  # the model and one token: the length of lm-eval's contexts is not known yet
        weights = {"model": request.model, **request.loading}
        smallest = CompareRequest(prompt="-", choices=request.all_choices, max_new_tokens=1, level="off", **weights)
        check_fits(smallest)
    errors = standard_error()
    with shown_progress(errors) as listener:
        result = run_lm_eval(request, out, on_progress=listener)
    for note in result.notes:
        errors.print(note)
    print_summary(result.rows, result.notes, out, as_json)
