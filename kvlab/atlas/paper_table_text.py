"""Write score tables as Markdown and LaTeX, each mean with its 95 % interval."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.atlas.paper_tables import OWN, PaperTable
from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import in_range
from kvlab.core.choice import FULL
from kvlab.core.errors import UserError
from kvlab.evaluate.scoring.metrics import packages
from kvlab.results.quality_tables import ranks, scores
from kvlab.views.base.provenance import settings_of_rows

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
    groups = rows.groupby(ONE, dropna=False, sort=False)
    return [_score_table(group, str(model), bool(aware)) for (model, _, aware), group in groups]


def _score_table(rows: pd.DataFrame, model: str, aware: bool) -> TextTable:
    table = scores(rows)
    best = {
        (line.task, line.arm, asked)
        for asked in table.loc[table["method"] != FULL.method, "asked"].unique()
        for line in ranks(rows, str(asked)).itertuples()
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
            else Cell(_mean(line.score, line.score_low, line.score_high, line.prompts, 3), (task, arm, asked) in best)
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
        devices(rows),
        settings_of_rows(rows),
    ]
    title = f"Scores of {model}"
    return TextTable(title, ("method", "budget", *across.values()), tuple(lines), "; ".join(filter(None, parts)) + ".")


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
    return TextTable(table.title, headed, tuple(lines), comparison_caption(table, frame, rows))


FRAME = ("dataset", "metric", "method", "budget", "ours", "ours_low", "ours_high", "prompts", "scored")


def comparison_caption(table: PaperTable, frame: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Caption: models, hardware, prompts, metrics with their packages, and differences in set-up."""
    values = table.values
    source = ", ".join(values["source"].unique()) if len(values) else "a figure without printed numbers"
    models = ", ".join(name for name in values["model"].unique() if name) or ", ".join(table.models) or "model not said"
    parts = [f"Theirs: {source}, {models}, hardware: {table.hardware}"]
    if len(rows):
        counts = sorted(set(frame["prompts"].dropna().astype(int)))
        bounds = " to ".join(f"{one:,}" for one in dict.fromkeys((counts[0], counts[-1]))) if counts else "no"
        scored = sorted(set(" and ".join(frame["scored"].dropna()).split(" and ")))
        measured = f"{bounds} prompts a dataset"
        ours = [", ".join(rows["model"].unique()), devices(rows), measured, settings_of_rows(rows), packages(scored)]
        parts.append("ours: " + ", ".join(filter(None, ours)) + ", mean [95 % interval]")
    return "; ".join([*parts, table.differs]) + "."


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
    lines = [[_md(Cell(head)) for head in table.header], rule, *([_md(cell) for cell in line] for line in table.lines)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_literal(table.title)}**\n\n{body}\n\n{_literal(table.caption)}\n"


def _literal(text: str) -> str:
    """Escape Markdown; underscores inside a word need no escape."""
    return re.sub(r"([\\`*<>|$~]|\](?=\()|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _md(cell: Cell) -> str:
    text = _literal(cell.text)
    return f"**{text}**" if cell.bold else text


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
