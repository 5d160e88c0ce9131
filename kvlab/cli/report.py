"""`kvlab report`: export a comparison as HTML, slides or PDF, or a run as GIF."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.common.atomic_write import replace_file
from kvlab.common.formatting import format_bytes
from kvlab.core.errors import UserError

KINDS = (".html", ".pptx", ".pdf", ".gif")


def report(
    comparison: Annotated[
        str,
        typer.Argument(
            metavar="COMPARISON",
            help="id from `kvlab runs ls`, or a run's id for its comparison; for a GIF the run's id; not with --story",
        ),
    ] = "",
    *,
    out: Annotated[Path, typer.Option(help="FILE.html, .pptx or .pdf; FILE.gif animates one head of a run")],
    story: Annotated[str, typer.Option(help="export the story of this name as a talk")] = "",
    layer: Annotated[int | None, typer.Option(help="layer of a GIF; default: an interesting one")] = None,
    head: Annotated[int | None, typer.Option(help="KV head of a GIF; default: an interesting one")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs")] = Path("runs"),
) -> None:
    """Export a comparison (answers, table, figures, caveats) or a story as HTML, PPTX or PDF, or a run as GIF."""
    from kvlab.report.export import export_gif, export_report, export_talk
    from kvlab.trace.stories import load_story

    if out.suffix.lower() not in KINDS:
        raise UserError(f"A report is an HTML, PPTX, PDF or GIF file: end {out.name!r} with one of {', '.join(KINDS)}.")
    if not runs.is_dir():
        raise UserError(f"There is no folder {runs}: give the folder of runs with --runs.")
    if bool(story) == bool(comparison):
        raise UserError("Name a comparison of `kvlab runs ls`, or a story by --story NAME.")
    kind = out.suffix.lower().lstrip(".")
    if kind == "gif":
        if story:
            raise UserError("A GIF shows a run: name a run instead of a story.")
        data = export_gif(runs, comparison, layer, head, lambda note: typer.echo(note, err=True))
    else:
        data = export_talk(load_story(runs, story), kind) if story else export_report(runs, comparison, kind)
    replace_file(out, lambda temporary: temporary.write_bytes(data))
    typer.echo(f"{out}: {format_bytes(len(data))}")
