"""`kvlab eval`: evaluate methods and budgets on tasks; one Parquet row per sample, a table with intervals."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import JsonValue

from kvlab.cli.options.model import ModelOptions, thinking_of
from kvlab.cli.options.part_tables import as_table, frame_of
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.prefix import PrefixOptions
from kvlab.cli.options.signature import group_parameters
from kvlab.cli.options.tables import SUMMARY_WIDTH, print_summary, print_wide
from kvlab.common.terminal import standard_error
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.method_spec import parse_spec
from kvlab.evaluate.request import EvalJob, EvalRequest

DEFAULT_TASKS = "needle,needle_multikey,key_value,few_shot"
DEFAULT_METHODS = "streaming-llm,h2o,snapkv,keepkv"
DEFAULT_BUDGETS = "0.1,0.2,0.4"  # at 0.05 nearly all scores are 0, at 0.5 eviction is near the full cache


@group_parameters
def evaluate(
    out: Annotated[
        Path | None,
        typer.Option(help="folder of results, from which a killed evaluation resumes; the atlas reads runs/eval/NAME"),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="such as needle,key_value:pairs=64; 'all'; '' for only --data")
    ] = DEFAULT_TASKS,
    methods: Annotated[str, typer.Option(help="such as h2o,keepkv:preset=paper")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="fractions of the prompt, or slots per KV head")] = DEFAULT_BUDGETS,
    lengths: Annotated[str | None, typer.Option(help="tokens, such as 512,2048; default: each task's own")] = None,
    depths: Annotated[str | None, typer.Option(help="such as 0,0.5,1; default: random per sample")] = None,
    samples: Annotated[int, typer.Option(help="prompts for each task, length and depth")] = 20,
    seed: Annotated[int, typer.Option(help="0 to 9,999,999")] = 0,
    question_aware: Annotated[str, typer.Option(help="compress with the question visible: yes or no")] = "yes",
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="your own file, such as ruler=niah/validation.jsonl or gsm8k=test.jsonl:shots_from=train.jsonl"
        ),
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help="tokens per answer for prompts of files; default: the benchmark's")
    ] = None,
    max_prompt: Annotated[
        int | None, typer.Option(help="tokens allowed per prompt of files; default: the context window")
    ] = None,
    cut: Annotated[
        str, typer.Option(help="part cut from longer prompts of files: start, middle (LongBench) or end")
    ] = "middle",
    style: Annotated[
        str, typer.Option(help="how tasks ask: continuation, chat, question; auto: chat if the model has a template")
    ] = "auto",
    forced: Annotated[
        bool, typer.Option("--forced", help="measure KL on the text that the full cache writes, not scored answers")
    ] = False,
    skip_malformed: Annotated[bool, typer.Option("--skip-malformed", help="skip malformed lines of files")] = False,
    batch: Annotated[int | None, typer.Option(help="batch size, of prompts of equal length")] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option(help="prefill prompts in chunks of N tokens; an error for methods this would change")
    ] = None,
    *,
    loading: ModelOptions,
    kept: PrefixOptions,
    preset: Annotated[
        str,
        typer.Option(
            help="reasoning: methods that compress while generating, on traced answers, --budgets in slots; or "
            "reproduce a paper's table from files in --data DIR, such as keepkv-table2"
        ),
    ] = "",
    table: Annotated[Path | None, typer.Option(help="write the scores to FILE.md or FILE.tex, with intervals")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="with --preset: plot our scores next to the paper's to FILE.html")
    ] = None,
    shard: Annotated[
        str, typer.Option(help="measure a part alone, such as 3/8; any number of parts may share --out at once")
    ] = "",
    on: Annotated[
        str, typer.Option(help="where to measure --shards parts: ray, slurm, or slurm:partition=gpu:time=240:mem=64G")
    ] = "",
    shards: Annotated[int, typer.Option(min=1, max=999_999, help="with --on: parts, one task each")] = 8,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Score compressed caches against the full cache on the same prompts."""
    # Imported here so that `kvlab --help` does not wait for torch.
    from kvlab.core.methods import spec
    from kvlab.evaluate import reasoning_preset, request_parser
    from kvlab.evaluate.data_check import check_tasks
    from kvlab.evaluate.harness import evaluate as run
    from kvlab.evaluate.job import shown_progress
    from kvlab.evaluate.plan import Shard

    fields: dict[str, Any] = {
        "samples": samples,
        "seed": seed,
        "skip_malformed": skip_malformed,
        "batch": batch,
        "prefill_chunk": prefill_chunk,
        "max_prompt": max_prompt,
        "cut": cut,
        "style": style,
        **asdict(loading),
    }
    part = Shard.parse(shard) if shard else None
    engine, options = parse_spec(on) if on else ("", {})
    if part or engine:
        _check_in_parts(engine, options, shard, table, kept, is_table=preset not in ("", reasoning_preset.NAME))
    if preset and preset != reasoning_preset.NAME:
        from kvlab.cli.paper_table import run_paper_table

        _check_defaults(preset, tasks=tasks == DEFAULT_TASKS, budgets=budgets == DEFAULT_BUDGETS, forced=not forced)
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
            **_as_fields(**fields),
        )
        return
    folder = _check_outputs(out, table, figure)
    asked = kept.asked(folder)
    errors = standard_error()
    choices: tuple[MethodChoice, ...] = ()
    if preset:
        tasks = reasoning_preset.TASKS if tasks == DEFAULT_TASKS else tasks
        named, notes = (
            reasoning_preset.reasoning_methods(loading.model) if methods == DEFAULT_METHODS else (methods, [])
        )
        choices = reasoning_preset.reasoning_choices(
            named, reasoning_preset.SLOTS if budgets == DEFAULT_BUDGETS else budgets
        )
        for note in notes:
            errors.print(note)
    request = request_from(
        tasks=DEFAULT_TASKS if asked else tasks,
        data=data,
        new_tokens=new_tokens,
        methods=methods,
        budgets=budgets,
        lengths=lengths,
        depths=depths,
        question_aware="no" if asked else question_aware,
        forced=forced,
        **fields,
    ).model_copy(update=asked | ({"choices": choices} if choices else {}))
    if note := spec.unused_byte_budgets(methods, budgets):
        errors.print(note)
    if not force and not engine:  # the memory of other machines is not known
        check_fits(EvalJob(name="request", request=request))
    check_tasks(request)
    if engine == "slurm":
        from kvlab.evaluate.shards import submit_to_slurm

        job = submit_to_slurm(request, folder, shards, options)
        typer.echo(
            f"Slurm job {job} measures {shards} parts in {folder}. Then the same command without --on measures what is "
            "missing, and prints the table."
        )
        return
    if engine == "ray":
        from kvlab.evaluate.shards import measure_on_ray

        result = measure_on_ray(request, folder, shards, options, errors.print)
    else:
        with shown_progress(errors) as listener:
            result = run(request, folder, on_progress=listener, prefixes=kept.root, shard=part)
    if table is not None:
        from kvlab.atlas.paper_table_text import score_tables, write

        write(table, score_tables(result.rows))
    for note in result.notes:
        errors.print(note)
    if part:
        errors.print(f"Part {part}: {len(result.rows)} rows are in {folder}.", soft_wrap=True)
        return
    print_summary(result.rows, result.notes, out, as_json, bool(request.depths))
    if preset and not as_json:
        print_wide(as_table(frame_of(result.rows, "reasoning"), "reasoning"), SUMMARY_WIDTH)


def request_from(*, data: list[str] | None, new_tokens: int | None, **options: Any) -> EvalRequest:
    """Build the request from this command's options. Raises UserError for the first invalid one."""
    from kvlab.evaluate.request_parser import parse_request

    files = [file if new_tokens is None else f"{file}:max_new_tokens={new_tokens}" for file in data or []]
    return parse_request(files=files, **_as_fields(**options))


def _as_fields(*, batch: int | None, cut: str, style: str, thinking: str | None, **options: Any) -> dict[str, Any]:
    """Options renamed to the fields of a request."""
    from kvlab.evaluate.request_parser import parse_cut, parse_style

    words = {"cut": parse_cut(cut), "style": parse_style(style), "thinking": thinking_of(thinking)}
    return {**options, "batch_rows": batch, **words}


def _check_defaults(preset: str, **is_default: bool) -> None:
    for name, default in is_default.items():
        if not default:
            raise UserError(f"--preset {preset} defines the experiment: leave out --{name}.")


def _check_in_parts(
    engine: str, options: dict[str, JsonValue], shard: str, table: Path | None, kept: PrefixOptions, is_table: bool
) -> None:
    """Raise UserError for an unknown engine, and for options that need the whole evaluation in one process."""
    if engine not in ("", "ray", "slurm"):
        raise UserError(f"--on takes ray or slurm, not {engine!r}.")
    if engine and shard:
        raise UserError("--on starts every part: leave out --shard.")
    whole = {"--table": table, "--keep-prefixes": kept.keep_prefixes, "--prefix": kept.prefix, "--preset": is_table}
    for option, value in whole.items():
        if value:
            raise UserError(f"{option} needs the whole evaluation in one process: leave out --shard and --on.")


def _check_outputs(out: Path | None, table: Path | None, figure: Path | None) -> Path:
    """The folder of results. Raises UserError if there is none, or a file cannot be written."""
    if out is None:
        raise UserError("Name a folder for the results: --out runs/eval/NAME.")
    if figure is not None:
        raise UserError("--figure plots a paper's table: use it with --preset.")
    if table is not None:
        from kvlab.atlas.paper_table_text import check_file

        check_file(table)
    return out
