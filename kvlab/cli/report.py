"""`kvlab report`: one comparison as a page, slides or a PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvlab.errors import UserError

KINDS = (".html", ".pptx", ".pdf")


def report(
    comparison: Annotated[
        str, typer.Argument(metavar="COMPARISON", help="of `kvlab runs ls`; a run's id names its own")
    ],
    out: Annotated[Path, typer.Option(help="FILE.html, FILE.pptx or FILE.pdf; repeat the command for several")],
    story: Annotated[str, typer.Option(help="a story by its name, as a talk")] = "",
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs")] = Path("runs"),
) -> None:
    """Write a comparison as a page, slides or a PDF (answers, table, telling figures, what to distrust), or a story."""
    from kvlab.figures.words import byte_size
    from kvlab.report.written import talk, written
    from kvlab.trace.atomic import replace_file
    from kvlab.trace.stories import load_story

    if out.suffix.lower() not in KINDS:
        raise UserError(f"A report is an HTML, PPTX or PDF file: end {out.name!r} with one of {', '.join(KINDS)}.")
    if not runs.is_dir():
        raise UserError(f"There is no folder {runs}: name the folder of runs by --runs.")
    if bool(story) == bool(comparison):
        raise UserError("Name a comparison of `kvlab runs ls`, or a story by --story NAME.")
    kind = out.suffix.lower().lstrip(".")
    data = talk(load_story(runs, story), kind) if story else written(runs, comparison, kind)
    replace_file(out, lambda temporary: temporary.write_bytes(data))
    typer.echo(f"{out}: {byte_size(len(data))}")
