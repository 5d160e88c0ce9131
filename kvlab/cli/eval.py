"""`kvlab eval`: tasks under methods and budgets, one Parquet row a sample, a table with intervals."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.cli.options.groups import grouped
from kvlab.cli.options.model import ModelOptions, thinking_of
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.common.errors import UserError

if TYPE_CHECKING:
    from kvlab.evaluate.request import EvalRequest

DEFAULT_TASKS = "needle,needle_multikey,key_value,few_shot"
DEFAULT_METHODS = "streaming-llm,h2o,snapkv,keepkv"
DEFAULT_BUDGETS = "0.1,0.2,0.4"  # at 0.05 nearly every score is 0, at 0.5 those of eviction are near the full cache
TABLE_WIDTH = 120  # a pipe says 80, which would break the intervals


@grouped
def evaluate(
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the results, which a killed evaluation goes on with; the atlas reads runs/eval/NAME"
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="such as needle,key_value:pairs=64; 'all'; '' with --data")
    ] = DEFAULT_TASKS,
    methods: Annotated[str, typer.Option(help="such as h2o,keepkv:preset=paper")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="fractions of the prompt, or slots per KV head")] = DEFAULT_BUDGETS,
    lengths: Annotated[str | None, typer.Option(help="tokens, such as 512,2048; default: each task's own")] = None,
    depths: Annotated[str | None, typer.Option(help="such as 0,0.5,1; default: a random one a sample")] = None,
    samples: Annotated[int, typer.Option(help="prompts for each task, length and depth")] = 20,
    seed: Annotated[int, typer.Option(help="0 to 9,999,999")] = 0,
    question_aware: Annotated[str, typer.Option(help="compress with the question in sight: yes or no")] = "yes",
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="your own file, such as ruler=niah/validation.jsonl or gsm8k=test.jsonl:shots_from=train.jsonl"
        ),
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help="tokens an answer to a file's prompt may have; default: the benchmark's own")
    ] = None,
    max_prompt: Annotated[
        int | None, typer.Option(help="tokens that prompts of files may have; default: window")
    ] = None,
    cut: Annotated[
        str, typer.Option(help="what longer prompts of files lose: start, middle (LongBench) or end")
    ] = "middle",
    skip_malformed: Annotated[bool, typer.Option("--skip-malformed", help="leave malformed lines out")] = False,
    batch: Annotated[int | None, typer.Option(help="prompts of equal length run together")] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option(help="feed prompts in chunks of N tokens; methods that would change say so")
    ] = None,
    *,
    loading: ModelOptions,
    preset: Annotated[
        str, typer.Option(help="a paper's table from files in --data DIR, such as keepkv-table2: ours beside theirs")
    ] = "",
    table: Annotated[Path | None, typer.Option(help="write the scores to FILE.md or FILE.tex, with intervals")] = None,
    figure: Annotated[Path | None, typer.Option(help="with --preset: draw ours beside theirs to FILE.html")] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Score compressed caches against the full cache on the same prompts."""
    # Imported here so that `kvlab --help` does not wait for torch.
    from kvlab.cli.options.tables import print_wide
    from kvlab.common.terminal import standard_error
    from kvlab.evaluate import request_parser
    from kvlab.evaluate.data_check import check_tasks
    from kvlab.evaluate.harness import evaluate as run
    from kvlab.evaluate.progress import shown_progress
    from kvlab.evaluate.request import EvalJob
    from kvlab.evaluate.results.summary import summarize
    from kvlab.evaluate.results.table import summary_json, summary_table
    from kvlab.methods import spec

    fields: dict[str, Any] = {
        "samples": samples,
        "seed": seed,
        "skip_malformed": skip_malformed,
        "batch": batch,
        "prefill_chunk": prefill_chunk,
        "max_prompt": max_prompt,
        "cut": cut,
        **asdict(loading),
    }
    if preset:
        from kvlab.cli.paper_table import run_paper_table

        _leaves_out(preset, tasks=tasks == DEFAULT_TASKS, budgets=budgets == DEFAULT_BUDGETS)
        run_paper_table(
            preset,
            data or [],
            out,
            "" if methods == DEFAULT_METHODS else methods,
            table,
            figure,
            as_json,
            lengths=request_parser.parse_numbers(lengths, "--lengths", int),
            depths=request_parser.parse_numbers(depths, "--depths", float),
            question_aware=request_parser.parse_yes_no(question_aware, "--question-aware"),
            new_tokens=new_tokens,
            force=force,
            **_read(**fields),
        )
        return
    _check_outputs(out, table, figure)
    request = requested(
        tasks=tasks,
        data=data,
        new_tokens=new_tokens,
        methods=methods,
        budgets=budgets,
        lengths=lengths,
        depths=depths,
        question_aware=question_aware,
        **fields,
    )
    errors = standard_error()
    if told := spec.unused_byte_budgets(methods, budgets):
        errors.print(told)
    if not force:
        check_fits(EvalJob(name="asked", request=request), Path())
    check_tasks(request)
    with shown_progress(errors) as listener:
        result = run(request, out or Path(), on_progress=listener)
    if table is not None:
        from kvlab.atlas.paper_table_text import score_tables, write

        write(table, score_tables(result.rows))
    for note in result.notes:
        errors.print(note)
    by = ["task", "difficulty", "length", *(["depth"] if request.depths else [])]
    summary = summarize(result.rows, by)
    if as_json:
        typer.echo(summary_json(summary, result.notes, str(out)))
    else:
        shown = summary_table(summary, result.rows["device"].dropna())
        print_wide(shown, TABLE_WIDTH)


def requested(*, data: list[str] | None, new_tokens: int | None, **options: Any) -> EvalRequest:
    """The request that options of this command ask for. Raises UserError for the first bad one."""
    from kvlab.evaluate.request_parser import parse_request

    files = [file if new_tokens is None else f"{file}:max_new_tokens={new_tokens}" for file in data or []]
    return parse_request(files=files, **_read(**options))


def _read(*, batch: int | None, cut: str, thinking: str | None, **options: Any) -> dict[str, Any]:
    """Options under the names that a request has for them."""
    from kvlab.evaluate.request_parser import parse_cut

    return {**options, "batch_rows": batch, "cut": parse_cut(cut), "thinking": thinking_of(thinking)}


def _leaves_out(preset: str, **left_out: bool) -> None:
    for name, yes in left_out.items():
        if not yes:
            raise UserError(f"--preset {preset} says what is asked: leave --{name} out.")


def _check_outputs(out: Path | None, table: Path | None, figure: Path | None) -> None:
    if out is None:
        raise UserError("Name a folder for the results: --out runs/eval/NAME.")
    if figure is not None:
        raise UserError("--figure draws a paper's table: it goes with --preset.")
    if table is not None:
        from kvlab.atlas.paper_table_text import check_file

        check_file(table)
