"""`kvlab run` and `kvlab compare`: one prompt, one or several methods, run folders and a table."""

from __future__ import annotations

from collections.abc import Callable
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
from kvlab.cli.repeats import (
    Depth,
    Repeats,
    Resume,
    Vary,
    Wording,
    new_batch_id,
    plantings_asked,
    run_repeats,
    show_batch,
)

if TYPE_CHECKING:
    from kvlab.requests import CompareRequest, Progress

Prompt = Annotated[str | None, typer.Option(help="the prompt's text")]
File = Annotated[Path | None, typer.Option(help="a UTF-8 text file with the prompt; - for standard input")]
Sample = Annotated[str | None, typer.Option(help="a prompt that ships with kvlab, such as needle_in_a_story")]
NewTokens = Annotated[int, typer.Option(help="tokens to generate")]
Level = Annotated[str, typer.Option(help="what to record: off, light or full")]
LevelOfMany = Annotated[str, typer.Option(help="what to record: off, light or full; full, or light with --repeats")]
Every = Annotated[int, typer.Option(help="decide every N decode steps")]
Chunk = Annotated[int | None, typer.Option(help="feed the prompt in chunks of N tokens, with the same result")]
Record = Annotated[str, typer.Option(help="arrays of some only: layers=0-3,8,heads=0,every=4; empty for all")]
Out = Annotated[Path, typer.Option(help="the folder of runs")]
Seed = Annotated[int, typer.Option(help="for methods that draw at random")]
Answer = Annotated[
    str | None, typer.Option(help="what a right continuation holds, as whole words; a sample has its own")
]
Facts = Annotated[
    list[str] | None,
    typer.Option("--fact", help="words of the prompt that the answer needs, as written there; give it again for more"),
]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
Force = Annotated[bool, typer.Option("--force", help="start also what is planned to be too big for this machine")]


Score = Annotated[str | None, typer.Option(help="compose a method: whose score, such as snapkv")]
Allocate = Annotated[str | None, typer.Option(help="compose a method: whose split of the budget, such as adakv")]
Select = Annotated[str | None, typer.Option(help="compose a method: which slots may go, such as topk")]
Settle = Annotated[str | None, typer.Option(help="compose a method: what becomes of them, such as zsmerge")]
Store = Annotated[str | None, typer.Option(help="how slots are held, in all methods but full, such as kivi4")]


def run(
    method: Annotated[str, typer.Argument(help="a method, such as keepkv or keepkv:rule=paper")] = "",
    budget: Annotated[str, typer.Option(help="a fraction of the prompt (0.2, 20%) or slots per KV head (128)")] = "0.2",
    prompt: Prompt = None,
    file: File = None,
    sample: Sample = None,
    answer: Answer = None,
    fact: Facts = None,
    model: Model = "mini",
    new_tokens: NewTokens = 64,
    level: Level = "full",
    compress_every: Every = 1,
    prefill_chunk: Chunk = None,
    record: Record = "",
    out: Out = Path("runs"),
    device: Device = "auto",
    dtype: Dtype = "auto",
    placement: Placement = "single",
    load_in: LoadIn = None,
    revision: Revision = None,
    cache_dir: CacheDir = None,
    chat: ChatWay = "auto",
    system: System = "",
    thinking: Thinking = None,
    seed: Seed = 0,
    score: Score = None,
    allocate: Allocate = None,
    select: Select = None,
    settle: Settle = None,
    store: Store = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run one method, named or composed, over one prompt and record it."""
    method = _with_composition(method, score=score, allocate=allocate, select=select, settle=settle, store=store)
    options = {
        "model": model,
        "level": level,
        "compress_every": compress_every,
        "prefill_chunk": prefill_chunk,
        "record": record,
        "device": device,
        "dtype": dtype,
        "placement": placement,
        "load_in": load_in,
        "revision": revision,
        "cache_dir": cache_dir,
        "chat": chat,
        "system": system,
        "thinking": thinking_of(thinking),
        "seed": seed,
        **_asked((prompt, file, sample), answer, fact),
    }
    _execute(method, budget, (prompt, file, sample), new_tokens, out, as_json, options, force)


def compare(
    methods: Annotated[str, typer.Option(help="comma-separated, such as h2o,keepkv:rule=paper")] = (
        "streaming-llm,h2o,snapkv,zsmerge,keepkv"
    ),
    budgets: Annotated[str, typer.Option(help="comma-separated; each method runs at each")] = "0.2",
    prompt: Prompt = None,
    file: File = None,
    sample: Sample = None,
    answer: Answer = None,
    fact: Facts = None,
    model: Model = "mini",
    new_tokens: NewTokens = 64,
    level: LevelOfMany = "",
    compress_every: Every = 1,
    prefill_chunk: Chunk = None,
    record: Record = "",
    out: Out = Path("runs"),
    device: Device = "auto",
    dtype: Dtype = "auto",
    placement: Placement = "single",
    load_in: LoadIn = None,
    revision: Revision = None,
    cache_dir: CacheDir = None,
    chat: ChatWay = "auto",
    system: System = "",
    thinking: Thinking = None,
    seed: Seed = 0,
    score: Score = None,
    allocate: Allocate = None,
    select: Select = None,
    settle: Settle = None,
    store: Store = None,
    repeats: Repeats = 0,
    vary: Vary = "depth,wording",
    depth: Depth = 0.3,
    wording: Wording = 1,
    resume: Resume = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compare several methods and budgets, and the full cache, over one prompt, or over repeats of a needle in it."""
    if resume:
        _resume(resume, out, as_json)
        return
    methods = _with_composition(methods, score=score, allocate=allocate, select=select, settle=settle, store=store)
    planted = plantings_asked(repeats, vary, depth, wording, seed)
    options = {
        "model": model,
        "level": level or ("light" if planted else "full"),
        "repeats": planted,
        "compress_every": compress_every,
        "prefill_chunk": prefill_chunk,
        "record": record,
        "device": device,
        "dtype": dtype,
        "placement": placement,
        "load_in": load_in,
        "revision": revision,
        "cache_dir": cache_dir,
        "chat": chat,
        "system": system,
        "thinking": thinking_of(thinking),
        "seed": seed,
        **_asked((prompt, file, sample), answer, fact, bool(planted)),
    }
    _execute(methods, budgets, (prompt, file, sample), new_tokens, out, as_json, options, force)


def _execute(
    methods: str,
    budgets: str,
    source: tuple[str | None, Path | None, str | None],
    new_tokens: int,
    out: Path,
    as_json: bool,
    options: dict[str, Any],
    force: bool = False,
) -> None:
    from kvlab.answers import find_facts
    from kvlab.cli.fitting import check_fits
    from kvlab.cli.prompt import read_prompt
    from kvlab.evaluate.parse import own_bytes, parse_choices
    from kvlab.recording import Recording

    text = read_prompt(*source)
    options["record"] = Recording.parse(options["record"])
    options["facts"] = find_facts(text, options["facts"])
    request = _request(
        prompt=text, choices=parse_choices(methods, budgets), max_new_tokens=new_tokens, title=_title(source), **options
    )
    if told := own_bytes(methods, budgets):
        typer.echo(told, err=True)
    if not force:
        check_fits(request, out)
    if request.repeats:
        show_batch(out, _batch_with_progress(request, out), as_json)
        return
    paths = _with_progress(request, out)
    _show(paths, as_json)


def _resume(batch: str, out: Path, as_json: bool) -> None:
    from kvlab.jobs.batch import load_batch

    show_batch(out, _batch_with_progress(load_batch(out, batch), out), as_json)


def _batch_with_progress(request: CompareRequest, out: Path) -> str:
    from kvlab.errors import UserError

    batch = request.batch or new_batch_id()
    known = request.model_copy(update={"batch": batch})
    try:
        _with_progress(known, out, lambda progress: run_repeats(known, out, progress))
    except (typer.Exit, UserError):
        typer.echo(f"Go on with it: kvlab compare --resume {batch} --out {out}", err=True)
        raise
    return batch


def _asked(
    source: tuple[str | None, Path | None, str | None],
    answer: str | None,
    facts: list[str] | None,
    planted: bool = False,
) -> dict[str, Any]:
    """The expected answer and the facts that were given, else those of the sample; what is planted brings its own."""
    from kvlab.answers import check_answer
    from kvlab.errors import UserError
    from kvlab.tasks.shipped_samples import shipped_samples

    own = next((sample for sample in shipped_samples() if source[2] and sample.name == Path(source[2]).stem), None)
    if planted:
        if answer is not None or facts or (own is not None and own.answer is not None):
            raise UserError(
                "Repeats plant their own needle: give a text without --answer, --fact or a sample's question."
            )
        return {"answer": None, "facts": ()}
    if answer is None and own is not None:
        answer = own.answer
    return {
        "answer": None if answer is None else check_answer(answer),
        "facts": tuple(facts or (own.facts if own else ())),
    }


def _with_composition(methods: str, store: str | None, **parts: str | None) -> str:
    """The methods asked for, and one composed of the parts that were given; `store` holds the slots of all of them."""
    from kvlab.evaluate.parse import split_list

    given = [f":{part}={choice}" for part, choice in parts.items() if choice is not None]
    if not given and not methods:
        from kvlab.errors import UserError

        raise UserError("Name a method, such as keepkv, or compose one with --score, --allocate, --select, --settle.")
    named = [*split_list(methods), *(["compose" + "".join(given)] if given else [])]
    held = "" if store is None else f":store={store}"
    return ",".join(name if name == "full" or ":store=" in name else name + held for name in named)


def _request(**fields: Any) -> CompareRequest:
    from pydantic import ValidationError

    from kvlab.errors import UserError
    from kvlab.given import as_option, in_one_sentence
    from kvlab.requests import CompareRequest

    try:
        return CompareRequest(**fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from None


def _title(source: tuple[str | None, Path | None, str | None]) -> str:
    prompt, file, sample = source
    named = sample or (file.stem if file is not None else "")
    return named.replace("_", " ").capitalize() if named else " ".join((prompt or "").split())[:60]


def _with_progress(
    request: CompareRequest, out: Path, work: Callable[[Callable[[Progress], None]], list[Path]] | None = None
) -> list[Path]:
    """Runs the request, or `work`, which is given the progress bar's report."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    from kvlab.engine import compare as run_comparison

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    screen = Console(stderr=True)
    with ProgressBar(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("loading the model", total=None)

        def report(progress: Progress) -> None:
            bar.update(task, description=progress.stage, completed=progress.done, total=progress.total)

        try:
            return work(report) if work else run_comparison(request, out, progress=report)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("Stopped. What was finished is complete; the run in progress is marked cancelled.", err=True)
            raise typer.Exit(130) from None


def _show(paths: list[Path], as_json: bool) -> None:
    from kvlab.analysis.board import ask, verdicts, wanted
    from kvlab.analysis.compare import headline
    from kvlab.analysis.verdict import NO_REFERENCE
    from kvlab.cli.table import print_headline
    from kvlab.trace import open_run
    from kvlab.trace.labels import Labels

    runs = [open_run(path) for path in paths]
    wish = wanted(runs, Labels())
    asked = None if wish is None else ask(runs, wish)
    frame = headline(runs) if asked is None else verdicts(runs, asked)
    if as_json:
        frame.insert(0, "path", [str(path) for path in paths])
        typer.echo(frame.to_json(orient="records", indent=2))
        return
    if asked is not None and asked.reference.kind in ("nearly", "wrong"):
        typer.echo(f"Beware: {NO_REFERENCE}.")
    print_headline(frame)
    said: dict[str, list[str]] = {}
    for run in runs:
        for note in run.record.remarks:
            said.setdefault(note, []).append(str(run.record.label))
    for note, labels in said.items():
        typer.echo(f"{', '.join(labels)}: {note}")
    typer.echo(f"Look at it: kvlab app --runs {paths[0].parent} --open {runs[0].record.comparison_id}")
