"""A comparison from the command line: its request, its progress on the screen, and its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvlab.cli.options.model import ModelOptions
from kvlab.cli.options.prompt import AnswerOptions, PromptOptions
from kvlab.cli.options.repeats import new_batch_id, run_repeats, show_batch
from kvlab.common.errors import UserError

if TYPE_CHECKING:
    from kvlab.requests.compare import CompareRequest, OnePrompt, Progress

Level = Annotated[str, typer.Option(help="what to record: off, light or full")]
Out = Annotated[Path, typer.Option(help="the folder of runs")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


@dataclass(frozen=True)
class RunningOptions:
    """How a prompt is read and generated from, and which arrays are recorded."""

    new_tokens: Annotated[int, typer.Option(help="tokens to generate")] = 64
    compress_every: Annotated[int, typer.Option(help="decide every N decode steps")] = 1
    prefill_chunk: Annotated[
        int | None, typer.Option(help="feed the prompt in chunks of N tokens, with the same result")
    ] = None
    generation_config: Annotated[
        str,
        typer.Option(help="ignore or honour the checkpoint's penalties, suppressed tokens and so on"),
    ] = "ignore"
    record: Annotated[str, typer.Option(help="arrays of some only: layers=0-3,8,heads=0,every=4; empty for all")] = ""

    @property
    def as_asked(self) -> dict[str, Any]:
        """As a request takes them. Raises UserError for a `record` that cannot be read."""
        from kvlab.requests.recording import Recording

        return {
            "max_new_tokens": self.new_tokens,
            "compress_every": self.compress_every,
            "prefill_chunk": self.prefill_chunk,
            "generation_config": self.generation_config,
            "record": Recording.parse(self.record),
        }


@dataclass(frozen=True)
class AskedOptions:
    """What is asked of which model, and of methods by their parts; and the folder of runs, where saved prompts lie."""

    text: PromptOptions
    answer: AnswerOptions
    running: RunningOptions
    model: ModelOptions
    parts: PartsOptions
    out: Out = Path("runs")
    seed: Annotated[int, typer.Option(help="for methods that draw at random")] = 0

    def of(self, found: Sequence[OnePrompt], level: str, planted: bool = False) -> dict[str, Any]:
        """As a request of these prompts takes them; `planted`: each is one that repeats of a needle are made from."""
        asked = self.answer.asked(found, planted) | self.running.as_asked | self.model.as_asked
        return asked | {"level": level, "seed": self.seed}


@dataclass(frozen=True)
class KeptOptions:
    """What a comparison is called, and the tags it is found by."""

    title: Annotated[
        str, typer.Option(help="what lists show; else the name of the file, or the prompt's first words")
    ] = ""
    tag: Annotated[list[str] | None, typer.Option(help="to find it by on the page Runs; repeatable")] = None


def make_request(methods: str, budgets: str, **fields: Any) -> CompareRequest:
    """The request of these fields. Raises UserError for the first that cannot be."""
    from pydantic import ValidationError

    from kvlab.common.errors import UserError
    from kvlab.common.validation import as_option, in_one_sentence
    from kvlab.methods.spec import parse_choices
    from kvlab.requests.compare import CompareRequest

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
    kept: KeptOptions | None = None,
    **options: Any,
) -> None:
    """Run it and print what came of it; `title` is for where none is given.

    Raises UserError for what cannot be, or does not fit (without `force`).
    """
    from kvlab.cli.options.plan_check import check_fits, notes_of
    from kvlab.methods.spec import own_bytes
    from kvlab.trace import pending_requests
    from kvlab.trace.catalogue import list_repeats
    from kvlab.trace.record import read_record
    from kvlab.trace.user_labels import check_tags

    kept = kept or KeptOptions()
    check_tags(kept.tag or ())
    request = make_request(methods, budgets, title=kept.title or title, **options)
    if told := own_bytes(methods, budgets):
        typer.echo(told, err=True)
    if not force:
        check_fits(request, out)
    for sentence in notes_of(request):
        typer.echo(sentence, err=True)
    if request.is_batch:
        batch = _batch_with_progress(request, out)
        _tag(out, kept, [entry.comparison_id for entry in list_repeats(out, batch)])
        show_batch(out, batch, as_json)
    else:
        for other in pending_requests.equal_requests(out, request):
            typer.echo(f"The same was begun and not finished: kvlab compare --resume {other} --out {out}", err=True)
        paths = _with_progress(request, out)
        _tag(out, kept, [read_record(paths[0]).comparison_id])
        _show(paths, as_json)


def _tag(out: Path, kept: KeptOptions, comparisons: list[str]) -> None:
    from kvlab.trace.user_labels import change_tags

    for name in comparisons if kept.tag else ():
        change_tags(out, name, add=kept.tag or ())


def go_on(name: str, out: Path, as_json: bool) -> None:
    """Go on with a batch of repeats, or with a comparison that was cut short, and print it."""
    from kvlab.jobs.batch import FOLDER, load_batch
    from kvlab.trace import pending_requests
    from kvlab.trace.schema import check_id

    if (out / FOLDER / f"{check_id(name)}.json").exists():
        show_batch(out, _batch_with_progress(load_batch(out, name), out), as_json)
    else:
        _show(_with_progress(pending_requests.load_request(out, name), out, resume=name), as_json)


def _batch_with_progress(request: CompareRequest, out: Path) -> str:
    from kvlab.common.errors import UserError

    batch = request.batch or new_batch_id()
    known = request.model_copy(update={"batch": batch})
    try:
        _with_progress(known, out, lambda progress: run_repeats(known, out, progress))
    except (typer.Exit, UserError):
        typer.echo(f"Go on with it: kvlab compare --resume {batch} --out {out}", err=True)
        raise
    return batch


def _with_progress(
    request: CompareRequest,
    out: Path,
    work: Callable[[Callable[[Progress], None]], list[Path]] | None = None,
    resume: str = "",
) -> list[Path]:
    """Runs the request, or `work`, which is given the progress bar's report; `resume` is a comparison to go on with."""
    from rich.progress import Progress as ProgressBar

    from kvlab.common.terminal import progress_columns, standard_error
    from kvlab.engine import compare as run_comparison
    from kvlab.trace import pending_requests

    screen = standard_error()
    with ProgressBar(*progress_columns(), console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("loading the model", total=None)

        def report(progress: Progress) -> None:
            bar.update(task, description=progress.stage, completed=progress.done, total=progress.total)

        try:
            if work:
                return work(report)
            return run_comparison(request, out, comparison_id=resume or None, progress=report, resume=bool(resume))
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("Stopped. What was finished is complete; the run in progress is marked cancelled.", err=True)
            for name in [] if work else pending_requests.equal_requests(out, request):
                typer.echo(f"Go on with it: kvlab compare --resume {name} --out {out}", err=True)
            raise typer.Exit(130) from None


def _show(paths: list[Path], as_json: bool) -> None:
    from kvlab.analysis.comparison.board import check_answer, expected_answer, verdicts
    from kvlab.analysis.comparison.compare import headline
    from kvlab.analysis.comparison.verdict import NO_REFERENCE
    from kvlab.cli.options.tables import print_headline
    from kvlab.trace import open_run
    from kvlab.trace.user_labels import Labels

    runs = [open_run(path) for path in paths]
    wish = expected_answer(runs, Labels())
    asked = None if wish is None else check_answer(runs, wish)
    frame = headline(runs) if asked is None else verdicts(runs, asked)
    if as_json:
        frame.insert(0, "path", [str(path) for path in paths])
        typer.echo(frame.to_json(orient="records", indent=2, double_precision=15))
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


@dataclass(frozen=True)
class PartsOptions:
    """The parts of a composed method, and a store."""

    score: Annotated[str | None, typer.Option(help="compose a method: whose score, such as snapkv")] = None
    allocate: Annotated[str | None, typer.Option(help="compose a method: whose split of the budget, such as adakv")] = (
        None
    )
    select: Annotated[str | None, typer.Option(help="compose a method: which slots may go, such as topk")] = None
    settle: Annotated[str | None, typer.Option(help="compose a method: what becomes of them, such as zsmerge")] = None
    store: Annotated[str | None, typer.Option(help="how slots are held, in all methods but full, such as kivi4")] = None

    def added_to(self, methods: str) -> str:
        """The methods asked for, and one composed of the parts that were given; the store holds the slots of all.

        Raises UserError where there is neither a method nor a part.
        """
        from kvlab.requests.method_spec import split_list

        parts = {"score": self.score, "allocate": self.allocate, "select": self.select, "settle": self.settle}
        given = [f":{part}={choice}" for part, choice in parts.items() if choice is not None]
        if not given and not methods:
            raise UserError(
                "Name a method, such as keepkv, or compose one with --score, --allocate, --select, --settle."
            )
        named = [*split_list(methods), *(["compose" + "".join(given)] if given else [])]
        held = "" if self.store is None else f":store={self.store}"
        return ",".join(name if name == "full" or ":store=" in name else name + held for name in named)
