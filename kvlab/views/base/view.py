"""A view: a frame read of a run, a comparison or rows of results, the figure drawn of it, and a sentence on it.

One file of `kvlab/views`, or of a plug-in, declares each:

    @view("slots", title="Slots held by layer", needs="light")
    def slots(run): ...                                   # -> DataFrame

    @slots.figure
    def draw_slots(frame, theme): ...                     # -> plotly Figure

    @slots.caption
    def describe_slots(frame): ...                        # -> one sentence

The frame's first parameter says what the view is of: `run`, `runs` (a comparison) or `rows` (of evaluations or
benchmarks, a frame). Further parameters of the three functions, such as `layer`, `head`, `step` and `token`, are the
place in it; figure and caption may take `run`, `runs` or `rows` too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.core.plugins.load import Registry
from kvlab.requests.compare import RecordLevel
from kvlab.trace.reader import Run
from kvlab.views.base import export
from kvlab.views.base.head_map import caption_focus
from kvlab.views.base.palette import Theme
from kvlab.views.base.provenance import FigureSource, of_comparison, of_run
from kvlab.views.base.template import along_text
from kvlab.views.frames.starting_point import suggest_head

Subject: TypeAlias = Run | Sequence[Run] | pd.DataFrame
Kind = Literal["run", "runs", "rows"]
Function = TypeVar("Function", bound=Callable[..., Any])
KINDS: tuple[Kind, ...] = ("run", "runs", "rows")
NAMED = ("layer", "head", "token", "step", "slot", "what", "measure", "fate")  # of a place, in names of files
FORMATS = ("svg", "png", "html", "csv")
LEVELS: tuple[RecordLevel, ...] = ("off", "light", "full")
# what lists of results share with their views stands above this package: loaded by name, as plug-ins are
MODULES_WITH_VIEWS = (
    "kvlab.results.quality_tables",
    "kvlab.results.speed_tables",
    "kvlab.results.setting_grid",
    "kvlab.results.survival",
    "kvlab.results.phase",
    "kvlab.results.risk.export",
)
MISSING = {"light": "what each step did", "full": "single events"}


@dataclass(frozen=True)
class Drawn:
    """A view of one subject at one place, ready to be shown or saved."""

    name: str
    title: str
    frame: pd.DataFrame
    figure: go.Figure
    caption: str
    provenance: FigureSource
    file_name: str
    theme: Theme

    @property
    def alt(self) -> str:
        """What the figure shows, for those who do not see it."""
        return f"{self.title}. {self.caption}"

    def __repr__(self) -> str:
        return f"<kvlab view {self.name}: {self.caption}>"

    def to(self, kind: str) -> bytes:
        """The view as a file of one of `FORMATS`; pictures need Chromium.

        Raises:
            UserError: there is no such format, or no Chromium.
        """
        if kind == "csv":
            return export.csv(self.frame)
        if kind == "html":
            return export.page(self.figure, self.caption, str(self.provenance), self.theme)
        if kind not in ("svg", "png"):
            raise UserError(
                f"A view cannot be saved as {kind[:20]!r}: give a file that ends with .{', .'.join(FORMATS)}."
            )
        writer = export.ImageWriter()
        try:
            return writer.image(self.figure, kind, self.caption, str(self.provenance), self.theme)  # type: ignore[arg-type]
        finally:
            writer.close()

    def save(self, path: str | Path) -> Path:
        """Write the file, in the format of its ending; raises as `to`."""
        file = Path(path)
        data = self.to(file.suffix.lower().lstrip("."))
        try:
            file.write_bytes(data)
        except OSError as error:
            raise UserError(f"{file} cannot be written ({error.strerror or error}): name another file.") from error
        return file


class View:
    """A registered view; see the module. Called as a function it returns the frame.

    Attributes:
        kind: what it is of.
        needs: the least level of recording it can be drawn from.
        page: the page of the dashboard that shows it.
        component: the component of `kvlab/browser` that shows it live in a notebook, if there is one.
        description: one sentence for its page, where it has one to itself (views of plug-ins).
        by_step: whether its x axis has steps, each of which leads to the token that it read.
    """

    def __init__(
        self,
        read: Callable[..., pd.DataFrame],
        name: str,
        title: str,
        needs: RecordLevel = "off",
        page: str = "",
        description: str = "",
        by_step: bool = False,
    ) -> None:
        self.read = read
        self.name = name
        self.title = title
        self.needs = needs
        self.page = page
        self.description = description
        self.by_step = by_step
        first = next(iter(signature(read).parameters), "run")
        self.kind: Kind = first if first in KINDS else "run"
        self._draw: Callable[..., go.Figure] | None = None
        self._describe: Callable[..., str] = lambda frame: ""
        self.component = ""
        self._live: Callable[..., dict[str, Any]] | None = None
        self.__module__ = read.__module__
        self.__qualname__ = read.__qualname__

    def __call__(self, *arguments: Any, **place: Any) -> pd.DataFrame:
        return self.read(*arguments, **place)

    def figure(self, draw: Function) -> Function:
        """Decorate the function (frame, theme, place ...) -> plotly Figure."""
        self._draw = draw
        return draw

    def caption(self, describe: Function) -> Function:
        """Decorate the function (frame, place ...) -> one sentence."""
        self._describe = describe
        return describe

    def live(self, component: str) -> Callable[[Function], Function]:
        """Decorate the function (run, theme, place ...) -> data of a component of `kvlab/browser`, live in notebooks.

        Its `shared` are texts and vectors that are the same at every step.
        """
        self.component = component

        def decorate(give: Function) -> Function:
            self._live = give
            return give

        return decorate

    def live_data(self, subject: Subject, theme: Theme, **place: Any) -> dict[str, Any]:
        """The data of `component` at a place."""
        assert self._live is not None, self.name
        return _call(self._live, (subject, theme), place, self.name)

    @property
    def place_names(self) -> list[str]:
        """What of a place it takes, such as layer and head."""
        functions = (self.read, self._draw, self._describe)
        names = [name for function in functions if function for name in signature(function).parameters]
        first = [next(iter(signature(self.read).parameters), "")]
        return [name for name in dict.fromkeys(names) if name not in (*first, *KINDS, "frame", "table", "theme")]

    def check(self, subject: Subject) -> None:
        """Raise UserError, one sentence with what to do, if the subject cannot give this view."""
        if isinstance(subject, pd.DataFrame):
            found: Kind = "rows"
        else:
            found = "run" if isinstance(subject, Run) else "runs"
        if found != self.kind:
            meant = {"run": "one run", "runs": "the runs of a comparison", "rows": "rows of results"}[self.kind]
            raise UserError(f"The view {self.name} is of {meant}.")
        if isinstance(subject, pd.DataFrame):
            if subject.empty:
                raise UserError(
                    f"There are no results for the view {self.name} yet: evaluate or measure methods first."
                )
            return
        runs = [subject] if isinstance(subject, Run) else subject
        if not runs:
            raise UserError(
                f"There is no run for the view {self.name}: record a comparison with `kvlab compare` first."
            )
        for run in runs:
            record = run.record
            if LEVELS.index(record.level) < LEVELS.index(self.needs):
                raise UserError(
                    f"{record.label} was recorded at level {record.level}, without {MISSING[self.needs]}: record it "
                    f"again with `kvlab compare --level {self.needs}`."
                )
            if self.needs != "off" and run.select("steps", columns=["step"]).empty:
                raise UserError(f"{record.label} has recorded no steps yet: open it again when some are there.")

    def frame(self, subject: Subject, **place: Any) -> pd.DataFrame:
        """The frame of a subject that `check` lets pass, at a place."""
        return _call(self.read, (subject,), place, self.name)

    def draw(self, subject: Subject, theme: Theme = "light", **place: Any) -> Drawn:
        """Check, read and draw; raises UserError with one sentence where the subject cannot give the view.

        Without a layer or head, the one that `suggest_head` finds telling is taken.
        """
        self.check(subject)
        place = self.whole_place(subject, place)
        return self.draw_frame(self.frame(subject, **place), subject, theme, **place)

    def whole_place(self, subject: Subject, place: Mapping[str, Any]) -> dict[str, Any]:
        """The place with the layer and head that are taken where it has none."""
        if not isinstance(subject, Run) or not {"layer", "head"} & set(self.place_names) - place.keys():
            return dict(place)
        suggested = suggest_head(subject, [subject], None)
        return {"layer": suggested.layer, "head": suggested.head} | dict(place)

    def describe(self, frame: pd.DataFrame, subject: Subject, **place: Any) -> str:
        """The caption of a frame that was read before."""
        return _call(self._describe, (frame,), {**place, self.kind: subject}, self.name)

    def draw_frame(
        self, frame: pd.DataFrame, subject: Subject, theme: Theme = "light", source: FigureSource = "", **place: Any
    ) -> Drawn:
        """Draw a frame that was read before; `source` is its provenance where neither its `attrs` nor rows carry it."""
        assert self._draw is not None, self.name
        values = {**place, self.kind: subject}
        figure = _call(self._draw, (frame, theme), values, self.name)
        title = figure.layout.title.text or self.title
        layer, head = (place.get(name) if name in self.place_names else None for name in ("layer", "head"))
        if layer is not None and head is not None:  # a figure that leaves its page says which head
            where = f"layer {layer}, head {head}"
            title = title.replace("this head", where) if "this head" in title else f"{title} ({where})"
        figure.update_layout(title_text=title)
        if self.by_step and isinstance(subject, Run):
            numbers = "/".join(str(place[name]) for name in ("layer", "head") if place.get(name) is not None)
            along_text(figure, offset=subject.record.prompt_tokens - 1, place=numbers)
        caption = self.describe(frame, subject, **place)
        if "focus" in place:
            caption = caption_focus(caption, figure, place["focus"])
        source = source or frame.attrs.get("source", "")
        if isinstance(subject, Run):
            source = source or of_run(subject)
            start = f"{subject.record.label}-"
        elif isinstance(subject, pd.DataFrame):
            source = source or subject.attrs.get("source", "")
            start = ""
        else:
            source = source or of_comparison(subject)
            start = f"{subject[0].record.comparison_id}-"
        shown = [name for name in NAMED if name in self.place_names and place.get(name) is not None]
        ends = [f"-{name}-{place[name]}" for name in shown]
        title = str(figure.layout.title.text)
        return Drawn(self.name, title, frame, figure, caption, source, f"{start}{self.name}{''.join(ends)}", theme)


def _call(function: Callable[..., Any], first: tuple[Any, ...], values: Mapping[str, Any], name: str) -> Any:
    """Call with the `first` arguments, and those of `values` that the function takes."""
    further = list(signature(function).parameters.values())[len(first) :]
    missing = [one.name for one in further if one.default is Parameter.empty and one.name not in values]
    if missing:
        raise UserError(f"The view {name} needs {' and '.join(missing)}: give a value for each.")
    return function(*first, **{one.name: values[one.name] for one in further if one.name in values})


# The dashboard imports only plug-ins that register views, because others import torch and transformers.
VIEWS: Registry[View] = Registry("view", only_of_plugins_with=r"@view\(|register_view")


def view(
    name: str,
    *,
    title: str,
    needs: RecordLevel = "off",
    page: str = "",
    description: str = "",
    by_step: bool = False,
) -> Callable[[Callable[..., pd.DataFrame]], View]:
    """Register a view by the function that reads its frame; raises UserError if the name is taken.

    `name` is part of addresses and file names: lower-case letters, digits and underscores.
    """
    return lambda read: register_view(View(read, name, title, needs, page, description, by_step))


def FigureView(
    name: str,
    title: str,
    sentence: str,
    frame: Callable[..., pd.DataFrame],
    figure: Callable[..., go.Figure],
    caption: Callable[..., str] | None = None,
    reading: Callable[..., str] | None = None,
) -> View:
    """The view of a run as plug-ins have written it before the decorator; `reading` is a former name of `caption`."""
    made = View(frame, name, title, description=sentence)
    made.figure(figure)
    made.caption(caption or reading or (lambda frame: ""))
    return made


def register_view(made: View) -> View:
    """Register a view; raises UserError if the name is taken."""
    VIEWS.add(made.name, made)
    return made


def all_views() -> Registry[View]:
    """Every view by name: those of `kvlab/views`, of `MODULES_WITH_VIEWS` and of plug-ins."""
    for file in sorted(Path(__file__).parents[1].glob("[a-z]*.py")):
        import_module(f"kvlab.views.{file.stem}")
    for name in MODULES_WITH_VIEWS:
        import_module(name)
    return VIEWS


def find_view(name: str) -> View:
    """The view of this name; raises UserError, which names near ones, if there is none."""
    found = all_views()
    if name not in found:
        raise found.unknown(name)
    return found[name]
