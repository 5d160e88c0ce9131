"""`kvlab table`: scores of evaluations as a table or a figure, also next to a paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import pandas as pd
import typer

from kvlab.cli.options.tables import SUMMARY_WIDTH, Kind, as_table, frame_of, write_csv
from kvlab.common.terminal import print_wide
from kvlab.core.errors import UserError

if TYPE_CHECKING:
    from kvlab.papers.paper_tables import PaperTable


def table(
    folders: Annotated[list[Path], typer.Argument(help="folders of results, such as runs/eval/first")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="FILE.md or .tex, with --of .csv, with --preset also .html, with --beside and --of survival .svg, "
            ".png, .html, .csv; default: printed"
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="show a paper's table next to ours, such as keepkv-table2")] = "",
    contents: Annotated[
        str,
        typer.Option(
            "--of",
            help="scores; rules and questions of prompts as parts (by kind), order, places (kind and third of the "
            "prompt) or deaths (budget at which each dies); reach (evidence that no head holds); reasoning (length and "
            "loops of answers, right and wrong); phase (by the needle's place modulo a method's chunk); survival of "
            "hidden tokens beside random draws",
        ),
    ] = "scores",
    beside: Annotated[
        str,
        typer.Option(help="scores of RULER's tasks next to a public board's: board (kvpress), or a FILE.csv like it"),
    ] = "",
) -> None:
    """Write a table of scores, methods and budgets by task, each mean with its 95 % interval."""
    from kvlab.evaluation.results.rows import newest, read_results
    from kvlab.papers import paper_tables
    from kvlab.papers.evaluations import origin_of
    from kvlab.views.base.view import find_view

    if contents not in get_args(Kind):
        raise UserError(f"--of takes {', '.join(get_args(Kind))}, not '{contents}'.")
    kind = cast(Kind, contents)
    known = paper_tables.paper_table(preset) if preset else None
    is_figure = known is not None and out is not None and out.suffix.lower() == ".html"
    is_drawn = bool(beside) and out is not None and out.suffix.lower() not in paper_tables.WRITERS
    if beside and (preset or kind != "scores"):
        raise UserError("--beside is a table of its own: leave out --preset and --of.")
    if out is not None and kind == "scores" and not is_figure and not is_drawn:
        paper_tables.check_file(out)
    rows = pd.concat([read_results(folder) for folder in folders], ignore_index=True).drop_duplicates("key")
    rows = newest(rows).reset_index(drop=True)
    if kind != "scores":
        frame = frame_of(rows, kind)
        if out is None:
            print_wide(as_table(frame, kind), SUMMARY_WIDTH)
        elif kind == "survival" and out.suffix.lower() != ".csv":
            rows.attrs["source"] = origin_of(rows.assign(name=", ".join(folder.name for folder in folders)))
            drawn = find_view("survival").draw(rows)
            typer.echo(f"{drawn.save(out)}: {drawn.caption}")
        else:
            write_csv(out, frame)
        return
    if beside:
        rows.attrs["source"] = origin_of(rows.assign(name=", ".join(folder.name for folder in folders)))
        drawn = find_view("public_board").draw(rows, board=beside)
        if is_drawn and out is not None:
            typer.echo(f"{drawn.save(out)}: {drawn.caption}")
            return
        tables = paper_tables.board_tables(drawn.frame)
    elif known is None:
        tables = paper_tables.score_tables(rows)
    else:
        scores = paper_tables.compare_scores(known, rows)
        if is_figure and out is not None:
            _draw(known, scores, rows, out)
            return
        tables = [paper_tables.comparison_table(known, scores, rows)]
    if out is None:
        typer.echo("\n".join(map(paper_tables.markdown, tables)), nl=False)
    else:
        paper_tables.write(out, tables)


def _draw(table: PaperTable, frame: pd.DataFrame, rows: pd.DataFrame, path: Path) -> None:
    from kvlab.papers.paper_tables import comparison_table
    from kvlab.views.base.export import page
    from kvlab.views.quality import caption_ours_beside_theirs, ours_beside_theirs

    drawn = ours_beside_theirs(frame, title=table.title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        caption = comparison_table(table, frame, rows).caption
        path.write_bytes(page(drawn, caption_ours_beside_theirs(frame), caption))
    except OSError as error:
        raise UserError(f"The figure cannot be written to {path} ({error.strerror or error}).") from error
