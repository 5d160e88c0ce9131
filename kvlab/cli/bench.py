"""`kvlab bench`: memory and speed against full caches and the device's bounds, as tables and a Parquet file."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kvlab.bench.request import MODES, BenchRequest, make_request
from kvlab.cli.options.model import CacheDir, Revision, Weights
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.common.terminal import standard_error, standard_output
from kvlab.core.errors import UserError

DEFAULT_METHODS = "streaming-llm,h2o,snapkv,zsmerge,keepkv"
RESULTS = Path("runs/bench")
TABLE_WIDTH = 170  # without a terminal

Own = Annotated[str | None, typer.Option(help="such as h2o,keepkv:rule=paper")]


@dataclass(frozen=True)
class MeasuredOptions:
    """What to measure, how often, on which model; defaults come from the mode or preset."""

    model: Annotated[str | None, typer.Option(help="mini, a folder, a hub name, or shape:llama3-8b (see above)")] = None
    new_tokens: Annotated[int | None, typer.Option(help="mode generate; mode memory: steps before reading")] = None
    repeats: Annotated[int | None, typer.Option(help="timed repeats, in turns")] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, mps, cuda, or a GPU such as cuda:1")] = None
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16")] = None
    steps: Annotated[int | None, Setting("decode steps per repeat")] = None
    warmup: Annotated[int | None, Setting("untimed steps before the first repeat")] = None
    points: Annotated[int | None, Setting("mode generate, number of lengths at which steps are timed")] = None
    fill: Annotated[str | None, Setting("synthetic for random states, prefill for a real prompt")] = None
    prefill_chunk: Annotated[int | None, Setting("prefill real prompts in chunks of N tokens")] = None
    compress_every: Annotated[int | None, Setting("decide every N decode steps; repeats cover whole periods")] = None
    capture: Annotated[str | None, Setting("replay captured decode steps, on, off, or auto (on a GPU)")] = None
    placement: Annotated[str | None, Setting("single, or auto to distribute weights over all devices")] = None
    weights: Weights = None
    revision: Revision = None
    cache_dir: CacheDir = None
    scale: Annotated[int | None, Setting("divide a shape's layers and width by this")] = None
    shorten: Annotated[int | None, Setting("divide contexts and budgets in slots by this")] = None
    seed: Annotated[int | None, Setting("seed of weights, states and random methods")] = None


@group_parameters
def bench(
    mode: Annotated[str, typer.Argument(help="decode, prefill, memory, generate, together")] = "decode",
    methods: Own = None,
    budgets: Annotated[str | None, typer.Option(help="fractions of the prompt, or slots per KV head")] = None,
    contexts: Annotated[str | None, typer.Option(help="tokens in the cache, such as 4096,16384")] = None,
    batches: Annotated[str | None, typer.Option(help="batch sizes")] = None,
    *,
    measured: MeasuredOptions,
    preset: Annotated[
        str | None,
        typer.Option(help="zsmerge-fig3, zsmerge-table1, keepkv-table1, kvmerger-table2, one-pass, limit"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of result files; the atlas reads the default")] = RESULTS,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """Measure memory and speed of compressed caches.

    Shapes (real architectures with random weights): shape:tiny, llama2-7b, llama2-13b, llama3-8b, mistral-7b,
    qwen2.5-7b, qwen3-8b.
    """
    changes = {name: value for name, value in asdict(measured).items() if value is not None}
    lists = {"contexts": contexts, "batches": batches}
    if preset is not None:
        # A preset's experiment with other repeats, device or size; the experiment itself cannot be changed.
        from kvlab.bench.request import find_preset, preset_requests
        from kvlab.models.load import pick_device

        fixed = {"methods": methods, "budgets": budgets, **lists}
        for option, value in (fixed | {name: changes.get(name) for name in ("model", "new_tokens")}).items():
            if value is not None:
                raise UserError(f"--preset {preset} defines the experiment: leave out --{option.replace('_', '-')}.")
        wanted = find_preset(preset).device
        on_device = pick_device(str(changes.get("device", "auto"))).type
        if wanted == "cuda" and on_device != "cuda" and "scale" not in changes:
            raise UserError(
                f"--preset {preset} needs a GPU with 80 GB or more; add --set scale=16 to run a smaller version here."
            )
        requests = preset_requests(preset, **changes)
    elif mode not in MODES:
        raise UserError(f"There is no mode {mode!r}; choose one of {', '.join(MODES)}.")
    else:
        from kvlab.core.methods.spec import parse_choices
        from kvlab.evaluation.request_parser import parse_numbers

        parsed = {name: parse_numbers(text, f"--{name}", int) for name, text in lists.items()}
        numbers = {name: values for name, values in parsed.items() if values is not None}
        choices = parse_choices(DEFAULT_METHODS if methods is None else methods, budgets or "0.2")
        requests = (make_request(choices=choices, mode=mode, **changes, **numbers),)
    if not force:
        from kvlab.bench.request import BenchJob

        check_fits(BenchJob(name="request", requests=requests))
    _measure_and_show(requests, preset or "", out, as_json)


def _measure_and_show(requests: tuple[BenchRequest, ...], preset: str, out: Path, as_json: bool) -> None:
    from kvlab.bench.harness import run_requests
    from kvlab.bench.rows import ResultFile
    from kvlab.bench.tables import measurement_tables, paper_table, rows_json

    stem = f"{preset or requests[0].mode}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    path = out / f"{stem}.parquet"
    number = 1
    while path.exists():
        path = out / f"{stem}-{number}.parquet"
        number = number + 1
    results = ResultFile(path)
    errors = standard_error()
    try:
        for row in run_requests(
            requests, listener=lambda stage, done, total: errors.print(f"{done + 1} of {total}: {stage}")
        ):
            results.add([row])
    except KeyboardInterrupt:
        errors.print(f"Stopped. Measured rows are in {results.path}", soft_wrap=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(rows_json(results.rows, str(results.path)))
        return
    screen = standard_output(TABLE_WIDTH)
    for table in [*measurement_tables(results.rows), paper_table(results.rows, preset)]:
        if table is not None:
            screen.print(table)
    screen.print(f"Rows are in {results.path}", soft_wrap=True)
