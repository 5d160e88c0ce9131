"""`kvlab eval`: tasks under methods and budgets, one Parquet row a sample, a table with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.cli.loading import (
    CacheDir,
    ChatWay,
    Device,
    Dtype,
    LoadIn,
    Model,
    Placement,
    Revision,
    System,
    Thinking,
    thinking_of,
)

if TYPE_CHECKING:
    from kvlab.evaluate.request import EvalRequest

DEFAULT_TASKS = "needle,needle_multikey,key_value,few_shot"
DEFAULT_METHODS = "streaming-llm,h2o,snapkv,keepkv"
DEFAULT_BUDGETS = "0.1,0.2,0.4"  # at 0.05 nearly every score is 0, at 0.5 those of eviction are near the full cache
TABLE_WIDTH = 120  # a pipe says 80, which would break the intervals


def evaluate(
    out: Annotated[
        Path,
        typer.Option(
            help="folder of the results, which a killed evaluation goes on with; the atlas reads runs/eval/NAME"
        ),
    ],
    model: Model = "mini",
    tasks: Annotated[
        str, typer.Option(help="such as needle,key_value:pairs=64; 'all'; '' with --data")
    ] = DEFAULT_TASKS,
    methods: Annotated[str, typer.Option(help="such as h2o,keepkv:variant=paper")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="fractions of the prompt, or slots per KV head")] = DEFAULT_BUDGETS,
    lengths: Annotated[str | None, typer.Option(help="tokens, such as 512,2048; default: each task's own")] = None,
    depths: Annotated[str | None, typer.Option(help="such as 0,0.5,1; default: a random one a sample")] = None,
    samples: Annotated[int, typer.Option(help="prompts for each task, length and depth")] = 20,
    seed: Annotated[int, typer.Option(help="0 to 9,999,999")] = 0,
    question_aware: Annotated[str, typer.Option(help="compress with the question in sight: yes or no")] = "yes",
    data: Annotated[list[str] | None, typer.Option(help="your own file, such as ruler=niah/validation.jsonl")] = None,
    skip_malformed: Annotated[bool, typer.Option("--skip-malformed", help="leave malformed lines out")] = False,
    batch: Annotated[int | None, typer.Option(help="prompts of equal length run together")] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option(help="feed prompts in chunks of N tokens; methods that would change say so")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    placement: Placement = "single",
    load_in: LoadIn = None,
    revision: Revision = None,
    cache_dir: CacheDir = None,
    chat: ChatWay = "auto",
    system: System = "",
    thinking: Thinking = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Score compressed caches against the full cache on the same prompts."""
    # Imported here so that `kvlab --help` does not wait for torch.
    from rich.console import Console

    from kvlab.evaluate.harness import evaluate as run
    from kvlab.evaluate.progress import shown_progress
    from kvlab.evaluate.summary import summarize
    from kvlab.evaluate.table import summary_json, summary_table

    request = requested(
        model=model,
        tasks=tasks,
        data=data,
        methods=methods,
        budgets=budgets,
        lengths=lengths,
        depths=depths,
        samples=samples,
        seed=seed,
        question_aware=question_aware,
        batch=batch,
        prefill_chunk=prefill_chunk,
        skip_malformed=skip_malformed,
        device=device,
        dtype=dtype,
        placement=placement,
        load_in=load_in,
        revision=revision,
        cache_dir=cache_dir,
        chat=chat,
        system=system,
        thinking=thinking,
    )
    errors = Console(stderr=True)
    with shown_progress(errors) as listener:
        result = run(request, out, on_progress=listener)
    for note in result.notes:
        errors.print(note, markup=False)
    by = ["task", "difficulty", "length", *(["depth"] if request.depths else [])]
    summary = summarize(result.rows, by)
    if as_json:
        typer.echo(summary_json(summary, result.notes, str(out)))
    else:
        Console(width=max(Console().width, TABLE_WIDTH)).print(summary_table(summary))


def requested(*, data: list[str] | None, batch: int | None, thinking: str | None, **options: Any) -> EvalRequest:
    """The request that options of the command line ask for. Raises UserError for the first bad one."""
    from kvlab.evaluate.parse import parse_request

    return parse_request(files=data or [], batch_rows=batch, thinking=thinking_of(thinking), **options)
