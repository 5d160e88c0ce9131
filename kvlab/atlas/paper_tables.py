"""Reproduce a paper's table: the files it needs, the request that runs it, and both sets of scores.

Tables are defined in `paper_tables.toml`; the papers' own scores are in `paper_values.csv`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import JsonValue

from kvlab.atlas.papers import paper_values
from kvlab.core.budget import Budget
from kvlab.core.choice import FULL, MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.method_spec import format_spec, parse_spec
from kvlab.evaluate.request import FileChoice
from kvlab.evaluate.results.summary import over_tasks, with_measures
from kvlab.evaluate.scoring.metrics import is_installed, rescore
from kvlab.views.base.provenance import PRESET, as_published

DATA = Path(__file__).with_name("paper_tables.toml")
AVERAGE = "avg."  # name of the mean over a table's tasks
OWN = "its own"  # the default metric of a file's format
DEPTH = ("", "*/", "*/*/")  # search depth in a folder
ROW = ["dataset", "metric", "method", "budget"]


@dataclass(frozen=True)
class PaperFile:
    """One file of a table. `metrics` maps the paper's metrics to kvlab's."""

    dataset: str
    find: tuple[str, ...]
    form: str
    task: str
    place: str
    metrics: Mapping[str, str] = field(default_factory=lambda: {OWN: OWN})

    def found_in(self, folder: Path) -> Path | None:
        """The first matching file in the folder or up to two levels below."""
        patterns = [below + name for name in self.find for below in DEPTH]
        return next((path for one in patterns for path in sorted(folder.glob(one)) if path.is_file()), None)


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of scores. `presets` maps "method budget" to a preset that differs from the paper's default."""

    name: str
    paper: str
    exhibit: str
    title: str
    hardware: str
    differs: str
    files: tuple[PaperFile, ...]
    scale: float = 1.0
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    without_budget: tuple[str, ...] = ()  # methods that find their own
    presets: Mapping[str, str] = field(default_factory=dict)
    max_prompt: int | None = None
    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] | None = None

    @property
    def values(self) -> pd.DataFrame:
        """The paper's values (`kvlab.atlas.papers.COLUMNS`); empty for a figure without numbers."""
        return paper_values(self.paper, self.exhibit)

    def choices(self) -> tuple[MethodChoice, ...]:
        """Every method and budget of the table except the full cache, with the paper's settings."""
        values = self.values
        asked = list(zip(values["method"], values["budget"], strict=True)) or [
            *((method, budget) for method in self.methods for budget in self.budgets),
            *((method, "") for method in self.without_budget),
        ]
        return tuple(self._choice(*one) for one in dict.fromkeys(asked) if one[0] != FULL.method)

    def _choice(self, arm: str, budget: str) -> MethodChoice:
        name, options = parse_spec(arm)
        if other := self.presets.get(f"{arm} {budget}"):
            options[PRESET] = other
        amount = Budget.parse(budget.removesuffix("slots")).amount if budget else FULL.budget
        return MethodChoice(method=name, budget=amount, hyper_parameters=as_published(name, options))

    def found(self, folder: Path) -> list[tuple[PaperFile, Path | None]]:
        """Every file of the table with its path, or None if missing. Raises UserError if `folder` is no folder."""
        if not folder.is_dir():
            raise UserError(f"{str(folder)!r} is not a folder: pass the folder of the benchmark's files to --data.")
        return [(file, file.found_in(folder)) for file in self.files]


def table_names() -> tuple[str, ...]:
    """The names of all tables."""
    return tuple(_tables())


def paper_table(name: str) -> PaperTable:
    """The named table; raises UserError if there is none."""
    if name not in _tables():
        raise UserError(f"There is no paper table '{name}': choose one of {', '.join(_tables())}.")
    return _tables()[name]


def file_sources() -> Mapping[str, str]:
    """Download locations per kind of file."""
    return dict(_data()["places"])


def file_choices(
    found: Iterable[tuple[PaperFile, Path | None]], options: Mapping[str, JsonValue] | None = None
) -> tuple[FileChoice, ...]:
    """The existing files as evaluation inputs, each with `options`."""
    there = [(file, path) for file, path in found if path is not None]
    return tuple(FileChoice(form=file.form, path=path, options=dict(options or {})) for file, path in there)


def compare_scores(table: PaperTable, rows: pd.DataFrame) -> pd.DataFrame:
    """Both sets of scores: one row per dataset, metric, method and budget of the paper, or else of our run.

    Columns: `ROW`, ours with `_low` and `_high`, prompts (empty if not run), scored (kvlab's metric), and one column
    per model of the paper. All scores are on the paper's scale.
    """
    ours = pd.DataFrame(_ours(table, rows), columns=[*ROW, "ours", "ours_low", "ours_high", "prompts", "scored"])
    values = table.values
    if values.empty:
        return ours
    theirs = values.assign(
        metric=[_printed(table, *one) for one in zip(values["dataset"], values["metric"], strict=True)],
        budget=[_words(one) for one in values["budget"]],
        model=values["model"].replace("", "not said"),
    )
    wide = theirs.pivot_table(index=ROW, columns="model", values="value", aggfunc="first", sort=False)
    order = theirs["model"].drop_duplicates().tolist()
    return wide[order].reset_index().rename_axis(columns=None).merge(ours, on=ROW, how="left")


def _printed(table: PaperTable, dataset: str, metric: str) -> str:
    file = next((file for file in table.files if file.dataset == dataset), None)
    return OWN if file is None or OWN in file.metrics else metric


def _words(budget: str) -> str:
    """A budget as text; "" for the full cache."""
    text = budget.strip()
    return "" if text in ("", "100 %") else Budget.parse(text.removesuffix("slots")).words


def _ours(table: PaperTable, rows: pd.DataFrame) -> list[dict[str, Any]]:
    if rows.empty:
        return []
    rows = rows.assign(arm=_arms(rows), asked=_asked(rows, table.without_budget))
    lines: list[dict[str, Any]] = []
    averaged: list[pd.DataFrame] = []
    for file in table.files:
        mine = rows[[fnmatch(task, file.task) for task in rows["task"]]]
        if mine.empty:
            continue
        for printed, metric in file.metrics.items():
            scored = _scored(mine, metric)
            averaged.append(scored)
            lines += _lines(table, file.dataset, printed, scored)
    if len(averaged) == len(table.files) > 1 and (table.values["dataset"] == AVERAGE).any():
        lines += _lines(table, AVERAGE, OWN, pd.concat(averaged, ignore_index=True))
    return lines


def _scored(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows under a metric; ROUGE uses the package of LongBench and the papers' code if it is installed."""
    wanted = rows["metric"].iloc[0] if metric == OWN else metric
    theirs = f"{wanted}_longbench"
    if wanted.startswith("rouge") and is_installed(theirs):
        wanted = theirs
    return rows if wanted == rows["metric"].iloc[0] else rescore(rows, wanted)


def _lines(table: PaperTable, dataset: str, metric: str, rows: pd.DataFrame) -> list[dict[str, Any]]:
    found = over_tasks(with_measures(rows), ["arm", "asked"], ("score",))
    scored = " and ".join(rows["metric"].unique()) if dataset != AVERAGE else "mean over the tasks"
    return [
        {
            "dataset": dataset,
            "metric": metric,
            "method": line["arm"],
            "budget": line["asked"],
            "ours": table.scale * line["score"],
            "ours_low": table.scale * line["score_low"],
            "ours_high": table.scale * line["score_high"],
            "prompts": line["prompts"],
            "scored": scored,
        }
        for _, line in found.iterrows()
    ]


def _arms(rows: pd.DataFrame) -> list[str]:
    """Methods with their options, without the shared preset."""
    read = [json.loads(text or "{}") for text in rows["hyper_parameters"]]
    own = [{name: value for name, value in options.items() if name != PRESET} for options in read]
    return [format_spec(*pair) for pair in zip(rows["method"], own, strict=True)]


def _asked(rows: pd.DataFrame, without_budget: tuple[str, ...]) -> list[str]:
    asked = zip(rows["method"], rows["budget"], rows["budget_unit"], strict=True)
    free = (FULL.method, *without_budget)
    return ["" if method in free else Budget.of(amount, unit).words for method, amount, unit in asked]


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


@cache
def _tables() -> dict[str, PaperTable]:
    return {name: _read(name, dict(given)) for name, given in _data().items() if name != "places"}


def _read(name: str, given: dict[str, Any]) -> PaperTable:
    files = [PaperFile(**{**one, "find": tuple(one["find"])}) for one in given.pop("files", [])]
    for dataset, task in given.pop("longbench", {}).items():
        files.append(PaperFile(dataset, (f"{task}.jsonl",), "longbench", f"longbench/{task}", "longbench"))
    listed: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return PaperTable(name=name, files=tuple(files), **listed)
