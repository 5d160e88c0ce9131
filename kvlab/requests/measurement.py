"""Measurements that an exhibit of the atlas needs, and the `kvlab` command line that makes each."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

Budgets = Sequence[float | int]
MINI = "mini"  # the model that ships with kvlab, which commands take without --model


@dataclass(frozen=True)
class RecordedComparison:
    """`kvlab compare` over a shipped sample prompt; `methods` are specs such as `keepkv:preset=paper`."""

    sample: str
    methods: tuple[str, ...]
    budgets: tuple[float | int, ...]
    out: Path
    level: str = "full"
    model: str = MINI

    @property
    def arguments(self) -> list[str]:
        """The arguments after `kvlab`."""
        methods = ",".join(self.methods)
        budgets = budgets_text(self.budgets)
        options = {
            "model": self.model,
            "sample": self.sample,
            "methods": methods,
            "budgets": budgets,
            "level": self.level,
        }
        return ["compare", *_options(options), "--out", path_text(self.out)]


@dataclass(frozen=True)
class Evaluation:
    """`kvlab eval` into the folder `out`, whose name is that of the evaluation; `tasks` may be `("all",)`.

    With `data` (files of the user's own) it is a command for a terminal.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    budgets: tuple[float | int, ...]
    samples: int
    out: Path
    lengths: tuple[int, ...] = ()
    depths: tuple[float, ...] = ()
    question_aware: bool | None = None  # None: not given on the command line, which means yes
    data: tuple[str, ...] = ()
    model: str = MINI

    @property
    def arguments(self) -> list[str]:
        options: dict[str, str | int] = {
            "methods": ",".join(self.methods),
            "budgets": budgets_text(self.budgets),
            "samples": self.samples,
            "lengths": budgets_text(self.lengths),
            "depths": budgets_text(self.depths),
            "question-aware": {None: "", True: "yes", False: "no"}[self.question_aware],
            "model": self.model,
        }
        files = [word for file in self.data for word in ("--data", file)]
        return ["eval", "--tasks", ",".join(self.tasks), *files, *_options(options), "--out", path_text(self.out)]


@dataclass(frozen=True)
class Benchmark:
    """`kvlab bench --preset`, its file in the folder `out`; `scale` and `shorten` divide shapes and texts.

    It has no model: a preset times the paper's shapes with random weights.
    """

    preset: str
    out: Path
    device: str = ""
    scale: int = 0
    shorten: int = 0

    @property
    def changes(self) -> dict[str, int | str]:
        """Fields of the preset's requests that differ from the preset."""
        fields: dict[str, int | str] = {"device": self.device, "scale": self.scale, "shorten": self.shorten}
        return {name: value for name, value in fields.items() if value}

    @property
    def arguments(self) -> list[str]:
        sizes = {"scale": self.scale, "shorten": self.shorten}
        settings = [word for name, size in sizes.items() if size for word in ("--set", f"{name}={size}")]
        options = _options({"preset": self.preset, "device": self.device})
        return ["bench", *options, *settings, "--out", path_text(self.out)]


@dataclass(frozen=True)
class ExhibitFill:
    """`python -m kvlab.cli.atlas fill` of one exhibit, such as `keepkv/fig-3`, over several prompts."""

    exhibit: str
    out: Path
    model: str = MINI

    @property
    def arguments(self) -> list[str]:
        options = {"only": self.exhibit, "model": self.model}
        return ["fill", *_options(options), "--out", path_text(self.out)]


Measurement = RecordedComparison | Evaluation | Benchmark | ExhibitFill


def command_line(measurement: Measurement) -> str:
    """The shell command of a measurement."""
    program = ["python", "-m", "kvlab.cli.atlas"] if isinstance(measurement, ExhibitFill) else ["kvlab"]
    return shlex.join([*program, *measurement.arguments])


def path_text(path: Path) -> str:
    """The path, relative to the current folder where it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else Path(relative).as_posix()


def budgets_text(budgets: Budgets) -> str:
    """Numbers as the command line takes them: `0.1,64`."""
    return ",".join(f"{budget:g}" if isinstance(budget, float) else str(budget) for budget in budgets)


def measurement_values(measurement: Measurement) -> dict[str, Any]:
    """The measurement as JSON takes it; `parse_measurement` reads it back."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in vars(measurement).items()}
    return {"kind": type(measurement).__name__, **values}


def parse_measurement(values: Mapping[str, Any]) -> Measurement:
    """The measurement that `measurement_values` wrote; raises KeyError or TypeError for other values."""
    kinds = {kind.__name__: kind for kind in get_args(Measurement)}
    fields: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
    fields["out"] = Path(fields["out"])
    return kinds[fields.pop("kind")](**fields)


def _options(values: Mapping[str, str | int]) -> list[str]:
    # mini is the default of `--model`
    stated = {name: value for name, value in values.items() if value and (name, value) != ("model", MINI)}
    return [word for name, value in stated.items() for word in (f"--{name}", str(value))]
