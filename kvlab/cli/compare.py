"""`kvlab compare`: run methods on prompts beside the full cache, with progress, and print a table."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from pydantic import ValidationError
from rich.progress import Progress as ProgressBar

from kvlab.cli.options.model import ModelOptions
from kvlab.cli.options.plan_check import Force, check_fits, notes_of
from kvlab.cli.options.prompt import AnswerOptions, PromptOptions
from kvlab.cli.options.repeats import RepeatsOptions, Resume, show_batch
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.cli.options.tables import print_headline, print_speeds
from kvlab.common.terminal import progress_columns, standard_error
from kvlab.core import UserError, as_option, in_one_sentence, split_list
from kvlab.requests.compare import CompareRequest, OnePrompt, Progress
from kvlab.requests.recording import Recording
from kvlab.trace import Run, open_run
from kvlab.trace import catalogue as pending_requests
from kvlab.trace.record import read_record
from kvlab.trace.schema import check_id
from kvlab.trace.user_labels import Labels, change_tags, check_tags

Level = Annotated[str, typer.Option(help="what to record: off, light or full")]
Out = Annotated[Path, typer.Option(help="the folder of runs")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


@dataclass(frozen=True)
class RunningOptions:
    """Options of prefill, generation and recording."""

    new_tokens: Annotated[int, typer.Option(help="tokens to generate")] = 64
    compress_every: Annotated[int, Setting("decide every N decode steps")] = 1
    prefill_chunk: Annotated[int | None, Setting("prefill in chunks of N tokens, with the same result")] = None
    generation_config: Annotated[
        str, typer.Option(help="ignore or honour the checkpoint's penalties, suppressed tokens and so on")
    ] = "ignore"
    record: Annotated[str, Setting("recorded arrays, such as layers=0-3,8,heads=0,every=4")] = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The request's fields. Raises UserError for an invalid `record`."""
        return {
            "max_new_tokens": self.new_tokens,
            "compress_every": self.compress_every,
            "prefill_chunk": self.prefill_chunk,
            "generation_config": self.generation_config,
            "record": Recording.parse(self.record),
        }


@dataclass(frozen=True)
class RequestOptions:
    """Prompt, answer, model, composed method, seed, and the folder of runs with its saved prompts."""

    text: PromptOptions
    answer: AnswerOptions
    running: RunningOptions
    model: ModelOptions
    storage: "StorageOptions"
    out: Out = Path("runs")
    seed: Annotated[int, typer.Option(help="seed of random methods")] = 0

    def fields(self, prompts: Sequence[OnePrompt], level: str, is_planted: bool = False) -> dict[str, Any]:
        """The fields of a request for these prompts; `is_planted`: a needle is planted into the prompt.

        Without a `level`, several comparisons are recorded at `light`, and one at `full`.
        """
        level = level or ("light" if is_planted or len(prompts) > 1 else "full")
        answer = self.answer.fields(prompts, is_planted)
        return answer | self.running.fields | asdict(self.model) | {"level": level, "seed": self.seed}


@dataclass(frozen=True)
class LabelOptions:
    """Title and tags under which a comparison is stored."""

    title: Annotated[
        str, typer.Option(help="title in lists; default: the file's name, or the prompt's first words")
    ] = ""
    tag: Annotated[list[str] | None, typer.Option(help="tag for finding it under All runs; repeatable")] = None


def make_request(methods: str, budgets: str, **fields: Any) -> CompareRequest:
    """Build a request. Raises UserError for the first invalid field."""
    from kvlab.core.methods.spec import parse_choices

    try:
        return CompareRequest(choices=parse_choices(methods, budgets), **fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from None


def execute(
    methods: str,
    budgets: str,
    title: str,
    out: Path,
    as_json: bool,
    force: bool,
    labels: LabelOptions | None = None,
    **options: Any,
) -> None:
    """Run a comparison and print its result; `title` is the default title.

    Raises UserError for an invalid request, or one that does not fit (without `force`).
    """
    from kvlab.core.methods.spec import unused_byte_budgets

    labels = labels or LabelOptions()
    check_tags(labels.tag or ())
    request = make_request(methods, budgets, title=labels.title or title, **options)
    if note := unused_byte_budgets(methods, budgets):
        typer.echo(note, err=True)
    if not force:
        check_fits(request)
    for sentence in notes_of(request):
        typer.echo(sentence, err=True)
    if request.is_batch:
        batch = _batch_with_progress(request, out)
        made = [entry.comparison_id for entry in pending_requests.list_repeats(out, batch)]
    else:
        for other in pending_requests.equal_requests(out, request):
            typer.echo(
                f"The same comparison is unfinished, resume it: kvlab compare --resume {other} --out {out}", err=True
            )
        paths = _with_progress(request, out, shows_answers=not as_json)
        made = [read_record(paths[0]).comparison_id]
    for name in made if labels.tag else ():
        change_tags(out, name, add=labels.tag or ())
    if request.is_batch:
        show_batch(out, batch, as_json)
    else:
        _show(paths, as_json)


def _batch_with_progress(request: CompareRequest, out: Path) -> str:
    from kvlab.engine import compare as run_comparison
    from kvlab.jobs.batch import run_batch

    batch = request.batch or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    named = request.model_copy(update={"batch": batch})
    try:
        _with_progress(
            named,
            out,
            lambda progress: run_batch(named, out, run_comparison, comparison_id=batch, progress=progress),
        )
    except (typer.Exit, UserError):
        typer.echo(f"Resume it: kvlab compare --resume {batch} --out {out}", err=True)
        raise
    return batch


def _with_progress(
    request: CompareRequest,
    out: Path,
    work: Callable[[Callable[[Progress], None]], list[Path]] | None = None,
    resume: str = "",
    shows_answers: bool = False,
) -> list[Path]:
    """Run the request, or `work` with the progress bar's callback; `resume` is the id of a comparison to resume.

    `shows_answers`: the answers are printed before speeds are measured.
    """
    from kvlab.engine import compare as run_comparison

    screen = standard_error()
    with ProgressBar(*progress_columns(), console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("loading the model", total=None)

        def report(progress: Progress) -> None:
            bar.update(task, description=progress.stage, completed=progress.done, total=progress.total)

        try:
            if work:
                return work(report)
            return run_comparison(
                request,
                out,
                comparison_id=resume or None,
                progress=report,
                resume=bool(resume),
                answered=partial(_show_answers, bar) if shows_answers else None,
            )
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("Stopped. Finished runs are complete; the current one is marked cancelled.", err=True)
            for name in [] if work else pending_requests.equal_requests(out, request):
                typer.echo(f"Resume it: kvlab compare --resume {name} --out {out}", err=True)
            raise typer.Exit(130) from None


def _show_answers(bar: ProgressBar, paths: list[Path]) -> None:
    """The answers with notes, while the bar pauses."""
    from kvlab.views.frames.verdict import NO_REFERENCE

    bar.stop()
    runs = [open_run(path) for path in paths]
    frame, reference = _judged(runs)
    if reference in ("nearly", "wrong"):
        typer.echo(f"Warning: {NO_REFERENCE}.")
    print_headline(frame)
    notes: dict[str, list[str]] = {}
    for run in runs:
        for note in run.record.remarks:
            notes.setdefault(note, []).append(str(run.record.label))
    for note, labels in notes.items():
        typer.echo(f"{', '.join(labels)}: {note}")
    typer.echo(f"Open it: kvlab app --runs {paths[0].parent} --open {runs[0].record.comparison_id}")
    bar.start()


def _show(paths: list[Path], as_json: bool) -> None:
    """The speeds, which are measured behind the answers; or everything as JSON."""
    frame, _ = _judged([open_run(path) for path in paths])
    if as_json:
        frame.insert(0, "path", [str(path) for path in paths])
        typer.echo(frame.to_json(orient="records", indent=2, double_precision=15))
    elif frame["tokens_per_second"].notna().any():
        print_speeds(frame)


def _judged(runs: list[Run]) -> tuple[pd.DataFrame, str]:
    """A row per run, with verdicts where an answer is expected, and what the full cache answered (`Reference.kind`)."""
    from kvlab.views.frames.board import check_answer, expected_answer, verdicts
    from kvlab.views.frames.compare import headline

    expected = expected_answer(runs, Labels())
    if expected is None:
        return headline(runs), ""
    asked = check_answer(runs, expected)
    return verdicts(runs, asked), asked.reference.kind


@dataclass(frozen=True)
class StorageOptions:
    """How slots are stored and read, for all methods but the full cache."""

    store: Annotated[
        str | None, typer.Option(help="how slots are stored, for all methods except full, such as kivi4")
    ] = None
    read: Annotated[
        str | None, typer.Option(help="which slots a step reads, for all methods except full, such as quest")
    ] = None

    def added_to(self, methods: str) -> str:
        """The methods, each but full with this store and `read` unless it names its own. Raises UserError for none."""
        if not methods:
            raise UserError("Name a method, such as keepkv, or compose one: compose:score=snapkv:allocate=adakv.")
        named = split_list(methods)
        for choice, value in (("store", self.store), ("read", self.read)):
            suffix = "" if value is None else f":{choice}={value}"
            named = [name if name == "full" or f":{choice}=" in name else name + suffix for name in named]
        return ",".join(named)


LevelOfMany = Annotated[
    str, typer.Option(help="what to record: off, light or full; default: full, light for several prompts")
]


@group_parameters
def compare(
    methods: Annotated[str, typer.Option(help="comma-separated, such as h2o,keepkv:rule=paper")] = (
        "streaming-llm,h2o,snapkv,zsmerge,keepkv"
    ),
    budgets: Annotated[str, typer.Option(help="comma-separated; each method runs at each")] = "0.2",
    *,
    options: RequestOptions,
    level: LevelOfMany = "",
    repeats: RepeatsOptions,
    labels: LabelOptions,
    resume: Resume = "",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compare methods and budgets with the full cache on one or several prompts, or on repeats of a needle."""
    out = options.out
    if resume:
        from kvlab.jobs.batch import FOLDER, load_batch

        if (out / FOLDER / f"{check_id(resume)}.json").exists():
            show_batch(out, _batch_with_progress(load_batch(out, resume), out), as_json)
        else:
            request = pending_requests.load_request(out, resume)
            _show(_with_progress(request, out, resume=resume, shows_answers=not as_json), as_json)
        return
    text = options.text
    methods = options.storage.added_to(methods)
    planted = repeats.plantings(options.seed)
    prompts = text.read_all(out)
    fields = options.fields(prompts, level, bool(planted))
    # The default title.
    named = text.sample or text.saved or ""
    if text.file:
        named = text.file[0].stem if len(text.file) == 1 else f"{len(text.file)} files"
    title = named.replace("_", " ").capitalize() if named else " ".join(prompts[0].prompt.split())[:60]
    execute(methods, budgets, title, out, as_json, force, labels, repeats=planted, **fields)
