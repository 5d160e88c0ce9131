"""The papers' printed values, and their tables reproduced: files, request, both sets of scores, Markdown and LaTeX.

Tables are defined in `paper_tables.toml`; the papers' own values are in the `paper_values.csv` of each paper.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import JsonValue

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import in_range
from kvlab.core import FULL, Budget, MethodChoice, UserError, format_spec, parse_spec
from kvlab.evaluation.request import FileChoice
from kvlab.evaluation.results.summary import over_tasks, with_measures
from kvlab.evaluation.scoring.metrics import is_installed, packages, rescore
from kvlab.results.quality_tables import ranks, scores
from kvlab.views.base import PRESET, as_published, plural, settings_of_rows
from kvlab.views.public_board import agreements

COLUMNS = ("exhibit", "source", "model", "method", "budget", "dataset", "metric", "value", "note")
VALUES = "paper_values.csv"


def paper_values(paper: str, exhibit: str) -> pd.DataFrame:
    """The values printed in one figure or table (`COLUMNS`), from the paper's `paper_values.csv`; empty if none.

    `method` is kvlab's name if it has the method; `budget` is as printed, with its unit.
    """
    values = _read(paper.replace("-", "_"))
    return values[values["exhibit"] == exhibit].reset_index(drop=True)


def paper_gap(values: pd.DataFrame, first: str, second: str, budget: str = "") -> float | None:
    """Mean of the paper's scores of `first` minus `second`, over its models and datasets, from 0 to 1 as kvlab's.

    Scores up to 100 are divided by 100. With `budget`, as printed, only of this budget; None if the paper prints none.
    """
    keys = ["model", "dataset", "metric", "budget"]
    chosen = values[values["budget"] == budget] if budget else values
    one, other = (chosen[chosen["method"] == method].set_index(keys)["value"] for method in (first, second))
    gaps = (one - other).dropna()
    return float(gaps.mean()) / (100 if chosen["value"].max() > 1 else 1) if len(gaps) else None


def grey_table(values: pd.DataFrame) -> pd.DataFrame:
    """The values in the paper's layout: one row per model, method and budget, one column per dataset (or metric)."""
    across = "dataset" if values["dataset"].nunique() > 1 else "metric"
    rows = [name for name in ("source", "model", "method", "budget") if values[name].astype(bool).any()]
    order = {name: values[name].drop_duplicates().tolist() for name in (*rows, across)}
    table = values.pivot_table(index=rows, columns=across, values="value", aggfunc="first", sort=False)
    return table[order[across]].reset_index().rename_axis(columns=None)


@cache
def _read(folder: str) -> pd.DataFrame:
    file = Path(__file__).parent / folder / VALUES
    if not file.exists():
        return pd.DataFrame(columns=list(COLUMNS))
    texts = [name for name in COLUMNS if name != "value"]
    return pd.read_csv(file, dtype=dict.fromkeys(texts, "string")).fillna(dict.fromkeys(texts, ""))


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
        """The paper's values (`COLUMNS`); empty for a figure without numbers."""
        return paper_values(self.paper, self.exhibit)

    def choices(self) -> tuple[MethodChoice, ...]:
        """Every method and budget of the table except the full cache, with the paper's settings."""
        values = self.values
        asked = list(zip(values["method"], values["budget"], strict=True)) or [
            *((method, budget) for method in self.methods for budget in self.budgets),
            *((method, "") for method in self.without_budget),
        ]
        found = []
        for arm, budget in dict.fromkeys(asked):
            if arm != FULL.method:
                name, options = parse_spec(arm)
                if other := self.presets.get(f"{arm} {budget}"):
                    options[PRESET] = other
                amount = Budget.parse(budget.removesuffix("slots")).amount if budget else FULL.budget
                choice = MethodChoice(method=name, budget=amount, hyper_parameters=as_published(name, options))
                found.append(choice)
        return tuple(found)

    def found(self, folder: Path) -> list[tuple[PaperFile, Path | None]]:
        """Every file of the table with the first path that matches, in the folder or up to two levels below; None if
        missing. Raises UserError if `folder` is no folder."""
        if not folder.is_dir():
            raise UserError(f"{str(folder)!r} is not a folder: pass the folder of the benchmark's files to --data.")
        found = []
        for file in self.files:
            patterns = [below + name for name in file.find for below in DEPTH]
            paths = (path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file())
            found.append((file, next(paths, None)))
        return found


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
    return dict(tomllib.loads(DATA.read_text(encoding="utf-8"))["places"])


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
    # The paper's name of a metric is kept where a file has several.
    several = [file.dataset for file in table.files if OWN not in file.metrics]
    theirs = values.assign(
        metric=values["metric"].where(values["dataset"].isin(several), OWN),
        # As text; "" for the full cache.
        budget=[
            "" if budget.strip() in ("", "100 %") else Budget.parse(budget.strip().removesuffix("slots")).description
            for budget in values["budget"]
        ],
        model=values["model"].replace("", "not said"),
    )
    wide = theirs.pivot_table(index=ROW, columns="model", values="value", aggfunc="first", sort=False)
    order = theirs["model"].drop_duplicates().tolist()
    return wide[order].reset_index().rename_axis(columns=None).merge(ours, on=ROW, how="left")


def _ours(table: PaperTable, rows: pd.DataFrame) -> list[dict[str, Any]]:
    if rows.empty:
        return []
    # Methods with their options, without the shared preset.
    read = [json.loads(text or "{}") for text in rows["hyper_parameters"]]
    settings = [{name: value for name, value in options.items() if name != PRESET} for options in read]
    free = (FULL.method, *table.without_budget)
    budgets = zip(rows["method"], rows["budget"], rows["budget_unit"], strict=True)
    rows = rows.assign(
        arm=[format_spec(*pair) for pair in zip(rows["method"], settings, strict=True)],
        asked=[
            "" if method in free else Budget.from_number(amount, unit).description for method, amount, unit in budgets
        ],
    )
    lines: list[dict[str, Any]] = []
    averaged: list[pd.DataFrame] = []
    for file in table.files:
        mine = rows[[fnmatch(task, file.task) for task in rows["task"]]]
        if mine.empty:
            continue
        for printed, metric in file.metrics.items():
            measured = mine["metric"].iloc[0]
            wanted = measured if metric == OWN else metric
            # ROUGE uses the package of LongBench and the papers' code if it is installed.
            theirs = f"{wanted}_longbench"
            if wanted.startswith("rouge") and is_installed(theirs):
                wanted = theirs
            scored = mine if wanted == measured else rescore(mine, wanted)
            averaged.append(scored)
            lines += _lines(table, file.dataset, printed, scored)
    if len(averaged) == len(table.files) > 1 and (table.values["dataset"] == AVERAGE).any():
        lines += _lines(table, AVERAGE, OWN, pd.concat(averaged, ignore_index=True))
    return lines


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


@cache
def _tables() -> dict[str, PaperTable]:
    tables = {}
    for name, described in tomllib.loads(DATA.read_text(encoding="utf-8")).items():
        if name == "places":
            continue
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in described.items()
            if key not in ("files", "longbench")
        }
        files = [PaperFile(**{**one, "find": tuple(one["find"])}) for one in described.get("files", [])]
        for dataset, task in described.get("longbench", {}).items():
            files.append(PaperFile(dataset, (f"{task}.jsonl",), "longbench", f"longbench/{task}", "longbench"))
        tables[name] = PaperTable(name=name, files=tuple(files), **values)
    return tables


BOLD_IS = "bold: level with the best at that budget by paired differences"
ONE = ["model", "model_digest", "question_aware"]  # each combination gets its own table
NOT_RUN = "–"


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and whether it is bold."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class TextTable:
    """A formatted table."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    caption: str


def score_tables(rows: pd.DataFrame) -> list[TextTable]:
    """One table per model and question-awareness: arms and budgets by tasks."""
    tables = []
    for (model, _, aware), group in rows.groupby(ONE, dropna=False, sort=False):
        table = scores(group)
        best = {
            (line.task, line.arm, asked)
            for asked in table.loc[table["method"] != FULL.method, "asked"].unique()
            for line in ranks(group, str(asked)).itertuples()
            if line.level
        }
        tasks = table[["task", "metric", "higher"]].drop_duplicates("task").itertuples(index=False)
        across = {task: f"{task} ({metric}{'' if higher else ', lower is better'})" for task, metric, higher in tasks}
        cells = {(line.arm, line.asked, line.task): line for line in table.itertuples()}
        lines = []
        for arm, asked in table[["arm", "asked"]].drop_duplicates().itertuples(index=False):
            found = [(task, cells.get((arm, asked, task))) for task in across]
            shown = [
                Cell(NOT_RUN)
                if line is None
                else Cell(
                    _mean(line.score, line.score_low, line.score_high, line.prompts, 3), (task, arm, asked) in best
                )
                for task, line in found
            ]
            named = ("full cache", "") if arm == FULL.method else (str(arm), str(asked))
            lines.append((*map(Cell, named), *shown))
        counts = sorted(set(table["prompts"]))
        n = f"n = {counts[0]:,}" if len(counts) == 1 else f"n = {counts[0]:,} to {counts[-1]:,}"
        parts = [
            f"{model}, question {'in' if aware else 'out of'} sight when compressed",
            f"mean score [95 % interval], {n} prompts a cell",
            BOLD_IS,
            packages(table["metric"].unique().tolist()),
            devices(group),
            settings_of_rows(group),
        ]
        header = ("method", "budget", *across.values())
        caption = "; ".join(filter(None, parts)) + "."
        tables.append(TextTable(f"Scores of {model}", header, tuple(lines), caption))
    return tables


def board_tables(frame: pd.DataFrame) -> list[TextTable]:
    """A board's scores beside ours (`kvlab.views.public_board`), and the rank correlations of every two models."""
    cells = frame.assign(
        share=frame["asked"].round(3),
        question=frame["aware"].map({True: "in sight", False: "not in sight"}),
        order=frame["score"].groupby(frame["label"]).transform("mean"),
    ).sort_values(["question", "share", "order"], ascending=[False, False, False], kind="stable")
    lines = []
    for line in cells.to_dict("records"):
        score = (
            f"{line['score']:.3f}"
            if line["is_board"]
            else _mean(line["score"], line["low"], line["high"], line["n"], 3)
        )
        shares = (f"{line['share']:.1%}", f"{line['kept']:.1%}")
        name = line["arm"] or line["label"]
        texts = (name, *shares, line["series"], line["question"], score, f"{line['n']:,}", line["note"])
        lines.append(tuple(map(Cell, texts)))
    header = ("method", "kept: asked", "kept: held", "model", "question", "score (0 to 1)", "n", "note")
    sources = "; ".join(name for name in frame["source"].unique() if name != "kvlab")
    tasks = f"means over {plural(int(frame['tasks'].max()), 'task')}, n prompts; ours: mean [95 % interval]"
    ranks = []
    for line in agreements(frame).to_dict("records"):
        pair = f"{line['first']} and {line['second']}"
        rho = line["why"] or "{} [{}, {}]".format(*in_range(line["rho"], line["low"], line["high"], "{:.2f}".format))
        kind = "ceiling" if line["ceiling"] else ""
        ranks.append(tuple(map(Cell, (pair, f"{line['asked']:.1%}", rho, str(line["methods"]), kind))))
    ranked = ("models", "kept: asked", "rank correlation (Spearman)", "methods", "")
    interval = "95 % interval: bootstrap over methods; ceiling: the board's models with each other, on the same tasks"
    return [
        TextTable("Scores beside a public board", header, tuple(lines), f"{sources}; {tasks}."),
        TextTable("Do the models rank the methods alike?", ranked, tuple(ranks), f"{interval}."),
    ]


def comparison_table(table: PaperTable, frame: pd.DataFrame, rows: pd.DataFrame) -> TextTable:
    """The paper's and our scores (`paper_tables.compare_scores`), with models and hardware in the caption."""
    theirs = [name for name in frame if name not in FRAME]
    digits = 1 if table.scale == 100 else 3
    model = ", ".join(rows["model"].unique()) if len(rows) else "not run"
    with_metric = frame["metric"].nunique() > 1 or not frame["metric"].eq(OWN).all()
    header = ["dataset", *(["metric"] if with_metric else []), "method", "budget"]
    lines = []
    for line in frame.to_dict("records"):
        named = [line["dataset"], *([line["metric"]] if with_metric else []), line["method"], line["budget"]]
        printed = [NOT_RUN if pd.isna(line[name]) else f"{line[name]:g}" for name in theirs]
        ours = _mean(line["ours"], line["ours_low"], line["ours_high"], line["prompts"], digits)
        lines.append(tuple(Cell(str(text)) for text in (*named, *printed, ours)))
    headed = (*header, *(f"theirs: {name}" for name in theirs), f"ours: {model}")
    # Models, hardware, prompts, metrics with their packages, and differences in set-up.
    values = table.values
    source = ", ".join(values["source"].unique()) if len(values) else "a figure without printed numbers"
    models = ", ".join(name for name in values["model"].unique() if name) or ", ".join(table.models) or "model not said"
    parts = [f"Theirs: {source}, {models}, hardware: {table.hardware}"]
    if len(rows):
        counts = sorted(set(frame["prompts"].dropna().astype(int)))
        bounds = " to ".join(f"{one:,}" for one in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
        scored = sorted(set(" and ".join(frame["scored"].dropna()).split(" and ")))
        measured = f"{bounds} prompts a dataset"
        run_on = [", ".join(rows["model"].unique()), devices(rows), measured, settings_of_rows(rows), packages(scored)]
        parts.append("ours: " + ", ".join(filter(None, run_on)) + ", mean [95 % interval]")
    return TextTable(table.title, headed, tuple(lines), "; ".join([*parts, table.differs]) + ".")


FRAME = ("dataset", "metric", "method", "budget", "ours", "ours_low", "ours_high", "prompts", "scored")


def devices(rows: pd.DataFrame) -> str:
    """Devices the rows were measured on."""
    return ", ".join(sorted(rows["device"].dropna().unique())) if "device" in rows else ""


def _mean(mean: float, low: float, high: float, count: float, digits: int) -> str:
    if pd.isna(mean):
        return NOT_RUN
    if count == 1:
        return f"{mean:.{digits}f} (one prompt)"
    middle, least, most = in_range(mean, low, high, f"{{:.{digits}f}}".format)
    return f"{middle} [{least}, {most}]"


def markdown(table: TextTable) -> str:
    """The table as GitHub Markdown, with its caption below."""
    rule = ["---", *["---:" if any(name in head for name in ("(", ":")) else "---" for head in table.header[1:]]]
    cells = [
        [f"**{_literal(cell.text)}**" if cell.bold else _literal(cell.text) for cell in line] for line in table.lines
    ]
    lines = [[_literal(head) for head in table.header], rule, *cells]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_literal(table.title)}**\n\n{body}\n\n{_literal(table.caption)}\n"


def _literal(text: str) -> str:
    """Escape Markdown; underscores inside a word need no escape."""
    return re.sub(r"([\\`*<>|$~]|\](?=\()|(?<!\w)_|_(?!\w))", r"\\\1", text)


LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--",
}  # fmt: skip


def latex(table: TextTable) -> str:
    """The table as LaTeX (needs booktabs)."""
    columns = "ll" + "r" * (len(table.header) - 2)
    bold = r"\textbf{{{}}}".format
    cells = [
        [bold(escape_latex(cell.text)) if cell.bold else escape_latex(cell.text) for cell in line]
        for line in table.lines
    ]
    rows = [" & ".join(line) + r" \\" for line in cells]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(f'{table.title}. {table.caption}')}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(escape_latex(head) for head in table.header) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(character, character) for character in text)


WRITERS = {".md": markdown, ".tex": latex}


def render_tables(ending: str, rows: pd.DataFrame) -> str:
    """The score tables of result rows in the format of a file ending."""
    return "\n".join(WRITERS[ending](table) for table in score_tables(rows))


def check_file(path: Path) -> Path:
    """The path; raises UserError unless it ends in .md or .tex."""
    if path.suffix.lower() not in WRITERS:
        raise UserError(f"Tables are written as Markdown or LaTeX: choose a file that ends in .md or .tex, not {path}.")
    return path


def write(path: Path, tables: list[TextTable]) -> None:
    """Write the tables in the file's format; raises UserError if it cannot be written."""
    text = "\n".join(WRITERS[check_file(path).suffix.lower()](table) for table in tables)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise UserError(f"The table cannot be written to {path} ({error.strerror or error}).") from error
