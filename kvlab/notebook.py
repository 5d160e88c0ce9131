"""The lab from Python and notebooks: comparisons, evaluations and folders of runs as objects that show themselves.

    result = kvlab.compare(text, methods=["snapkv", "keepkv:rule=votes"], budgets=[0.1, 0.2], answer="48213")
    result.frame
    result["snapkv", 0.1].view("wall")
    kvlab.evaluate(["needle"], methods=["snapkv"], budgets=[0.2], samples=30).frame

docs/python.md has the columns of every frame with their units.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload
from uuid import uuid4

import pandas as pd
from pydantic import ValidationError
from tqdm import tqdm

from kvlab.core import UserError, in_one_sentence, path_of
from kvlab.requests.compare import CompareRequest, RecordLevel
from kvlab.requests.recording import Recording
from kvlab.trace.catalogue import list_runs, load_request
from kvlab.trace.reader import Run
from kvlab.trace.record import read_record
from kvlab.trace.user_labels import Labels, load_labels
from kvlab.views.base.view import Drawn, Subject, all_views, find_view
from kvlab.views.base.words import plural
from kvlab.views.frames.board import check_answer, expected_answer, verdicts
from kvlab.views.frames.compare import headline
from kvlab.views.frames.lineage import step_labels, steps_with_events

if TYPE_CHECKING:  # reading a run needs no model stack
    from ipywidgets import DOMWidget

    from kvlab.models.load import LoadedModel
    from kvlab.views.base.widget import BrowserView

PICTURE_ENDING = 64  # characters of a picture's base64 by which the live view finds it in the page
Budgets = Sequence[float | int | str]
# What a table shows of a frame: column -> (heading, format).
SHOWN = {
    "label": ("run", "{}"),
    "verdict": ("answer", "{}"),
    "wrote": ("wrote", "{:.40}"),
    "live_bytes": ("live KiB", "{:,.0f}"),
    "live_ratio": ("of full", "{:.0%}"),
    "mean_kl": ("KL to full, nats/token", "{:.4f}"),
    "top1_agreement": ("top-1 agreement", "{:.0%}"),
    "tokens_per_second": ("tokens/s", "{:.1f}"),
    "status": ("status", "{}"),
    "task": ("task", "{}"),
    "length": ("tokens", "{:,.0f}"),
    "method": ("method", "{}"),
    "budget": ("budget", "{}"),
    "samples": ("n", "{}"),
    "metric": ("metric", "{}"),
    "score": ("score", "{:.3f}"),
    "score_low": ("low", "{:.3f}"),
    "score_high": ("high", "{:.3f}"),
    "bytes": ("of full bytes", "{:.0%}"),
    "title": ("title", "{:.60}"),
    "model": ("model", "{}"),
    "created": ("created", "{:.19}"),
    "runs": ("runs", "{}"),
}


class ModelSettings(TypedDict, total=False):
    """Keywords of `compare` and `evaluate` for the model, fields of `kvlab.requests.compare.ModelRequest`."""

    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    placement: Literal["single", "auto"]
    weights: Literal["bf16", "8bit", "4bit"] | None
    revision: str | None
    cache_dir: str | None
    chat: Literal["auto", "no"]
    system: str
    thinking: bool | None
    prefill_chunk: int | None


class CompareSettings(ModelSettings, total=False):
    """Further keywords of `compare`, fields of `kvlab.requests.compare.CompareRequest`."""

    other_answers: Sequence[str]
    compress_every: int
    generation_config: Literal["ignore", "honour"]
    record: Recording | dict[str, Any]


class EvaluateSettings(ModelSettings, total=False):
    """Further keywords of `evaluate`, fields of `kvlab.evaluation.request.EvalRequest`."""

    batch_rows: int | None
    style: Literal["auto", "continuation", "chat", "question"]
    forced: bool
    skip_malformed: bool
    max_prompt: int | None
    cut: Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Selection:
    """What was clicked in a live view, and the step that it shows; None where the view has no such thing."""

    layer: int | None
    head: int | None
    step: int
    token: int | None


@dataclass(frozen=True, repr=False)
class LiveView(Drawn):
    """A view that a notebook shows: with anywidget (extra `notebook`) live, and as a picture that needs no kernel."""

    subject: Subject
    place: dict[str, Any]

    @cached_property
    def widgets(self) -> tuple[DOMWidget, BrowserView] | None:
        """What is shown, and the part of it that reports; None without anywidget, or for a view without steps."""
        if find_spec("anywidget") is None:
            return None
        from kvlab.views.base.widget import BrowserView, stepped_figure

        view = find_view(self.name)
        place = {name: value for name, value in self.place.items() if name != "theme"}
        ending = self._picture[-PICTURE_ENDING:]
        if view.component:
            whole = BrowserView(
                view.component,
                lambda step: view.live_data(
                    self.subject, self.theme, **(place if step is None else {**place, "step": step})
                ),
                self.theme,
                ending,
            )
            return whole, whole
        if "step" not in view.place_names:
            return None
        run = self.subject if isinstance(self.subject, Run) else self.subject[-1]
        steps, events = steps_with_events(run.select("steps", columns=["step", "evicted", "merged"]))
        return stepped_figure(
            self.figure,
            lambda step: view.draw(self.subject, self.theme, **{**place, "step": step}).figure,
            place.get("step", steps[-1]),
            steps,
            events,
            step_labels(run.tokens, run.record.prompt_tokens, steps),
            self.theme,
            ending,
        )

    @property
    def selection(self) -> Selection | None:
        """What was clicked last in the live view, and the step it shows; None before a click."""
        if self.widgets is None or not self.widgets[1].was_used:
            return None
        part = self.widgets[1]
        layer, head, token = part.place or (self.place.get("layer"), self.place.get("head"), part.token)
        return Selection(layer, head, part.step, None if token is None or token < 0 else token)

    @cached_property
    def _picture(self) -> str:
        """Base64 of the PNG; empty without Chromium."""
        try:
            return b64encode(self.to("png")).decode()
        except UserError:
            return ""

    def _ipython_display_(self) -> None:
        """Show the picture and, below it, the live view, which hides the picture.

        In one output JupyterLab would take the live view alone, which says "model not found" when the notebook is
        opened again without a kernel.
        """
        if self.widgets is None or not self._picture or not _is_in_kernel():
            raise NotImplementedError  # IPython then asks for `_repr_mimebundle_`
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        display({"image/png": bundle.pop("image/png"), "text/plain": self.title}, raw=True)
        display(bundle, raw=True)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The live view or plotly's chart, and a picture for where there is no kernel (needs Chromium)."""
        if self.widgets is None:
            bundle = dict(self.figure._repr_mimebundle_(include, exclude) or {})
        else:
            data = self.widgets[0]._repr_mimebundle_()
            bundle = dict(data[0] if isinstance(data, tuple) else data)
        bundle.pop("image/png", None)
        picture = {"image/png": self._picture} if self._picture else {}
        return {**bundle, **picture, "text/plain": repr(self)}


class RecordedRun(Run):
    """A recorded run that draws views of itself: `run.view("wall")`, `run.view("timeline", layer=3, head=1)`."""

    @property
    def views(self) -> list[str]:
        """Names of the views that its level of recording can give."""
        names = []
        for name, view in sorted(all_views().items()):
            with suppress(UserError):
                view.check(self)
                names.append(name)
        return names

    def view(self, name: str, **place: Any) -> LiveView:
        """Draw a view of the run; `place` is what the view takes, such as `layer`, `head`, `step` and `token`.

        Raises UserError for an unknown view, or one that needs a higher level of recording.
        """
        return _draw(name, self, place)

    def _repr_html_(self) -> str:
        title = f"<p><b>{self.record.label}</b>: {self!r}".replace("<kvlab", "kvlab").removesuffix(">")
        return f"{title}<br>Views: <code>run.view(NAME)</code> with {', '.join(self.views) or 'none'}</p>"


class _Table:
    """An object whose text and HTML form is a table of its frame, of the columns `COLUMNS`."""

    COLUMNS: Sequence[str]
    about: str  # one line above the table
    frame: Any  # a DataFrame; a property of each kind

    def _shown(self) -> pd.DataFrame:
        frame = self.frame
        shown = {}
        for name in (name for name in self.COLUMNS if name in frame):
            heading, form = SHOWN[name]
            scale = 1024 if name == "live_bytes" else 1
            cells = (value if scale == 1 or pd.isna(value) else value / scale for value in frame[name])
            shown[heading] = ["–" if pd.isna(value) else form.format(value) for value in cells]
        # A named index, of comparisons in a folder, is the first column.
        names = {} if frame.index.name is None else {frame.index.name.removesuffix("_id"): frame.index}
        return pd.DataFrame(names | shown)

    def __repr__(self) -> str:
        return f"{self.about}\n{self._shown().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return f"<p>{self.about}</p>{self._shown().to_html(index=False, border=0)}"


class Comparison(_Table):
    """The runs of one comparison, the full cache first.

    `result[SPEC, BUDGET]` is a run, as is `result["full"]`, `result[0]` and `result[RUN_ID]`; iterating gives all.

    Attributes:
        runs: the runs that are complete, in the order of the request.
        request: what was asked; None if it was opened from a folder.
    """

    COLUMNS = ("label", "verdict", "wrote", "live_bytes", "live_ratio", "mean_kl", "top1_agreement", "status")

    def __init__(self, folder: Path, comparison_id: str, request: CompareRequest | None = None) -> None:
        entries = sorted(list_runs(folder, comparison_id=comparison_id), key=lambda entry: entry.run_id)
        if not entries:
            raise UserError(f"There is no comparison {comparison_id!r} in {folder}: kvlab.open_folder lists all.")
        self.folder = folder
        self.comparison_id = comparison_id
        self.request = request
        self.entries = entries
        paths = [folder / entry.run_id for entry in entries if entry.status == "complete"]
        self.runs = [RecordedRun(path, read_record(path)) for path in paths]
        missing = len(entries) - len(self.runs)
        if request is not None:
            missing = len(request.runs) - len(self.runs)
        first = self.runs[0].record if self.runs else read_record(folder / entries[0].run_id)
        self.about = (
            f"Comparison {comparison_id}: {first.prompt_tokens:,} tokens of prompt, {first.max_new_tokens} new, "
            f"model {first.model.name}, one prompt"
        )
        if missing:
            runs_still = any(entry.status == "running" for entry in entries)
            advice = "open it again when it has ended" if runs_still else "result.resume() goes on"
            self.about += f"; {missing} of its runs are not complete: {advice}"

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a run: `kvlab.views.frames.compare.headline`, and with an expected answer its verdicts.

        Where no run is complete yet, only `label` and `status` of those that were begun.
        """
        if not self.runs:
            return pd.DataFrame([{"label": entry.label, "status": entry.status} for entry in self.entries])
        labels = load_labels(self.folder, self.comparison_id) if self.folder.is_dir() else Labels()
        expected = expected_answer(self.runs, labels)
        return headline(self.runs) if expected is None else verdicts(self.runs, check_answer(self.runs, expected))

    def _repr_html_(self) -> str:
        """The table, and below it quality against bytes as a picture, where there is Chromium to draw it."""
        table = super()._repr_html_()
        with suppress(UserError):
            drawn = self.view("quality")
            source = f"data:image/png;base64,{b64encode(drawn.to('png')).decode()}"
            return f'{table}<img style="max-width: 48em" alt="{escape(drawn.alt)}" src="{source}">'
        return table

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[RecordedRun]:
        return iter(self.runs)

    def __getitem__(self, key: int | str | tuple[str, float | int | str]) -> RecordedRun:
        if isinstance(key, int):
            return self.runs[key]
        from kvlab.core.choice import FULL
        from kvlab.core.contract.method import make_method
        from kvlab.core.methods.spec import parse_choices

        spec, budget = (key, None) if isinstance(key, str) else key
        found = [run for run in self.runs if run.record.run_id == spec]
        if not found:
            (choice,) = parse_choices(spec, str(FULL.budget if budget is None else budget))
            settings = make_method(choice.method, **choice.hyper_parameters).model_dump(mode="json")
            records = [run for run in self.runs if run.record.method == choice.method]
            found = [run for run in records if run.record.hyper_parameters == settings]
            if budget is not None:
                found = [run for run in found if run.record.budget == choice.budget]
        if len(found) != 1:
            labels = ", ".join(str(run.record.label) for run in self.runs)
            count = "no run" if not found else f"{len(found)} runs"
            raise UserError(f"{key!r} names {count}: give a method and a budget of one of these: {labels}.")
        return found[0]

    def view(self, name: str, **place: Any) -> LiveView:
        """Draw a view of the comparison, or raise UserError: views of one run are `result[SPEC, BUDGET].view(NAME)`."""
        return _draw(name, self.runs, place)

    def resume(self) -> Comparison:
        """Run what was stopped, and return the whole; raises UserError if nothing is missing, or it is being made."""
        entries = list_runs(self.folder, comparison_id=self.comparison_id)
        if any(entry.status == "running" for entry in entries):
            raise UserError(f"Comparison {self.comparison_id} is being made: open it again when it has ended.")
        request = self.request or load_request(self.folder, self.comparison_id)
        if len(self.runs) == len(request.runs):
            raise UserError(f"Comparison {self.comparison_id} has nothing to resume.")
        return _run(request, self.folder, self.comparison_id, None, resume=True)


class Scores(_Table):
    """Scores of methods on tasks: means over prompts with 95 % intervals.

    Attributes:
        rows: one row a prompt and method, as `kvlab eval` stores them.
        notes: sentences on what was left out.
    """

    COLUMNS = ("task", "length", "method", "budget", "metric", "samples", "score", "score_low", "score_high", "bytes")

    def __init__(self, rows: pd.DataFrame, notes: Sequence[str], folder: Path) -> None:
        self.rows = rows
        self.notes = list(notes)
        self.folder = folder
        self.about = f"{len(rows):,} rows of {folder}. {' '.join(notes)}".strip()

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a task, length, method and budget (`kvlab.evaluation.results.summary.summarize`)."""
        from kvlab.evaluation.results.summary import summarize

        return summarize(self.rows)

    def view(self, name: str, **place: Any) -> LiveView:
        """Draw a view of evaluations; raises UserError for an unknown view, or one of another kind."""
        return _draw(name, self.rows, place)


class Folder(_Table):
    """A folder of runs: `folder[COMPARISON_ID]` is a comparison, `folder[RUN_ID]` a run."""

    COLUMNS = ("title", "model", "created", "runs", "status")

    def __init__(self, path: Path) -> None:
        self.path = path
        entries = list_runs(path)
        if not entries:
            raise UserError(f"There are no runs in {path}: record some with kvlab.compare(..., out={str(path)!r}).")
        self.runs = pd.DataFrame([entry.model_dump() for entry in entries])
        self.about = (
            f"{plural(len(entries), 'run')} of {plural(self.runs['comparison_id'].nunique(), 'comparison')} in {path}"
        )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a comparison, newest first; index: its id."""
        grouped = self.runs.groupby("comparison_id", sort=False)
        frame = grouped.agg(title=("title", "first"), model=("model", "first"), created=("created", "min"))
        excerpts = grouped["excerpt"].first()
        return frame.assign(
            title=frame["title"].where(frame["title"] != "", excerpts),
            runs=grouped.size(),
            status=grouped["status"].agg(lambda states: ", ".join(sorted(set(states)))),
        )

    def __getitem__(self, name: str) -> Comparison | RecordedRun:
        if name in set(self.runs["run_id"]):
            return RecordedRun(self.path / name, read_record(self.path / name))
        return Comparison(self.path, name)


def open_folder(path: Path | str = "runs") -> Folder:
    """Open a folder of runs, as a table of its comparisons; raises UserError for a folder without runs."""
    return Folder(path_of(path, "The folder of runs"))


def open_run(path: Path | str) -> RecordedRun:
    """The run in a folder, which draws views of itself; raises UserError if it is no run folder or is damaged."""
    path = path_of(path, "The run")
    return RecordedRun(path, read_record(path))


@overload
def compare(prompt: CompareRequest, root: Path | str = "runs", **options: Any) -> list[Path]: ...


@overload
def compare(
    prompt: str,
    *,
    methods: str | Sequence[str],
    budgets: Budgets = (0.2,),
    model: str | LoadedModel = "mini",
    answer: str | None = None,
    facts: Sequence[str] = (),
    new_tokens: int = 64,
    level: RecordLevel = "full",
    title: str = "",
    seed: int = 0,
    out: Path | str = "runs",
    **fields: Unpack[CompareSettings],
) -> Comparison: ...


def compare(
    prompt: str | CompareRequest,
    root: Path | str = "runs",
    *,
    methods: str | Sequence[str] = (),
    budgets: Budgets = (0.2,),
    model: str | LoadedModel = "mini",
    answer: str | None = None,
    facts: Sequence[str] = (),
    new_tokens: int = 64,
    level: RecordLevel = "full",
    title: str = "",
    seed: int = 0,
    out: Path | str = "",
    **fields: Any,
) -> Comparison | list[Path]:
    """Compare methods at budgets with the full cache on one prompt, in one pass.

    Args:
        prompt: the text; or a `CompareRequest`, for which the paths of its runs are returned and `fields` are options
            of `kvlab.engine.compare`.
        methods: specs such as "snapkv" or "keepkv:rule=votes".
        budgets: shares of the tokens (0.2), slots a head (64) or bytes ("20%B", "64MiB").
        model: a name, or a model loaded by `kvlab.load_model`, which is kept.
        answer: words that a right continuation contains; `facts`: spans of the prompt that it needs.
        level: what is recorded, off, light or full.
        out: the folder of runs.
        fields: `CompareSettings` and `ModelSettings`.

    The stop button and Ctrl-C return the runs that are complete, which may be none: `result.resume()` goes on.
    Raises UserError for bad input, before anything runs.
    """
    from kvlab.core.choice import FULL
    from kvlab.core.methods.spec import parse_choices
    from kvlab.engine.compare import compare as run_request

    if isinstance(prompt, CompareRequest):
        return run_request(prompt, root, **fields)
    loaded = None if isinstance(model, str) else model
    choices = parse_choices(_joined(methods), _joined(budgets))
    if len(choices) == 1 and choices[0].method != FULL.method:  # a request of one choice would run it alone
        choices = (FULL, *choices)
    try:
        request = CompareRequest(
            prompt=prompt,
            choices=choices,
            model=model if isinstance(model, str) else model.name,
            answer=answer,
            facts=tuple(facts),  # given as text: the first match counts
            max_new_tokens=new_tokens,
            level=level,
            title=title,
            seed=seed,
            **fields,
        )
    except ValidationError as error:
        raise UserError(in_one_sentence(error, lambda name: name)) from None
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:6]}"
    return _run(request, Path(out or root), name, loaded)


def _run(
    request: CompareRequest, folder: Path, name: str, loaded: LoadedModel | None, resume: bool = False
) -> Comparison:
    from kvlab.engine.compare import compare as run_request

    with _Bar() as bar:
        try:
            run_request(request, folder, comparison_id=name, progress=bar.report, loaded=loaded, resume=resume)
        except KeyboardInterrupt:
            if not list_runs(folder, comparison_id=name):  # before any run was begun
                raise
    return Comparison(folder, name, request)


def evaluate(
    tasks: str | Sequence[str],
    *,
    methods: str | Sequence[str],
    budgets: Budgets = (0.2,),
    samples: int = 20,
    model: str | LoadedModel = "mini",
    lengths: Sequence[int] | None = None,
    depths: Sequence[float] | None = None,
    question_aware: bool = True,
    files: Sequence[str] = (),
    seed: int = 0,
    out: Path | str = "runs/eval/notebook",
    **fields: Unpack[EvaluateSettings],
) -> Scores:
    """Score methods at budgets and the full cache on the same prompts.

    Args:
        tasks: such as "needle" or "key_value:pairs=64"; `files`: such as "ruler=niah.jsonl".
        methods, budgets, model: as `compare` takes them.
        samples: prompts of each task and length.
        lengths: tokens of a prompt; None: those of each task.
        depths: where in the text the evidence is, 0 to 1; None: anywhere.
        question_aware: whether a cache is compressed with the question in sight.
        out: the folder of rows; prompts that stand there are not measured again.
        fields: `EvaluateSettings` and `ModelSettings`.

    The stop button and Ctrl-C keep what is measured, and return it: the same call goes on.
    Raises UserError for bad input, before anything runs.
    """
    from kvlab.evaluation.harness import evaluate as run_evaluation
    from kvlab.evaluation.request_parser import parse_request

    request = parse_request(
        tasks=_joined(tasks),
        files=files,
        methods=_joined(methods),
        budgets=_joined(budgets),
        lengths=None if lengths is None else _joined(lengths),
        depths=None if depths is None else _joined(depths),
        question_aware="yes" if question_aware else "no",
        samples=samples,
        seed=seed,
        model=model if isinstance(model, str) else model.name,
        **fields,
    )
    loaded = None if isinstance(model, str) else model
    folder = Path(out)
    notes: list[str] = []
    with _Bar() as bar:
        try:
            measured = run_evaluation(request, folder, loaded, on_progress=bar.report)
        except KeyboardInterrupt:
            measured = run_evaluation(request, folder, loaded, cancelled=lambda: True)
            notes.append("Stopped: the same call goes on.")
    return Scores(measured.rows, [*measured.notes, *notes], folder)


def _draw(name: str, subject: RecordedRun | list[RecordedRun] | pd.DataFrame, place: dict[str, Any]) -> LiveView:
    """Draw a view of the subject; a view itself ignores the parts of a place that it does not take."""
    view = find_view(name)
    view.check(subject)
    if unknown := sorted(place.keys() - {*view.place_names, "theme", "focus"}):
        raise UserError(
            f"The view {name} takes no {' or '.join(unknown)}: give {', '.join(view.place_names) or 'none'}."
        )
    drawn = view.draw(subject, **place)
    return LiveView(**vars(drawn), subject=subject, place=view.whole_place(subject, place))


def _joined(given: str | Sequence[object]) -> str:
    return given if isinstance(given, str) else ",".join(map(str, given))


class _Bar(tqdm):
    """A bar; in a notebook an output that is empty in the end, so that a saved one keeps nothing of it."""

    def __init__(self) -> None:
        self._output = None
        if _is_in_kernel():
            from IPython.display import display

            self._output = display({"text/plain": ""}, raw=True, display_id=True)
        elsewhere: dict[str, Any] = {} if self._output is None else {"file": StringIO(), "ncols": 100}
        super().__init__(total=1, leave=False, **elsewhere)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        if self._output is None:
            return super().display(msg, pos)
        self._output.update({"text/plain": str(self) if msg is None else msg}, raw=True)
        return True

    def report(self, progress: Any) -> None:
        """Take a report of progress (`stage`, `done`, `total`)."""
        self.total = progress.total
        self.set_description_str(str(getattr(progress, "stage", "")), refresh=False)
        self.update(progress.done - self.n)


def _is_in_kernel() -> bool:
    """Whether a notebook shows what is displayed; IPython in a terminal has no kernel."""
    return "IPython" in sys.modules and hasattr(sys.modules["IPython"].get_ipython(), "kernel")
