"""`kvlab view`: one view of a run, comparison, evaluation or benchmark as a picture, page or table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvlab.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def view(
    run: Annotated[
        str, typer.Argument(help="id or folder of a run, id of a comparison, or name of an evaluation or benchmark")
    ],
    name: Annotated[str, typer.Argument(help="name of a view; without one, all are listed")] = "",
    to: Annotated[
        Path | None, typer.Option(help="FILE.svg, .png, .html or .csv; default: the table is printed")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="default: an interesting one")] = None,
    head: Annotated[int | None, typer.Option(help="KV head; default: an interesting one")] = None,
    step: Annotated[int | None, typer.Option(help="decode step; default: the view's own")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="the folder of runs")] = Path("runs"),
) -> None:
    """Draw one view of a run, comparison, evaluation or benchmark: `kvlab view RUN timeline --to timeline.svg`."""
    from kvlab.core.validation import quote_value
    from kvlab.trace import open_run
    from kvlab.trace.catalogue import list_runs
    from kvlab.views.base.view import Subject, all_views, find_view

    if not name:
        kinds = {"run": "run", "runs": "comparison", "rows": "results"}
        for found in sorted(all_views().values(), key=lambda found: (found.page, found.name)):
            names = [part for part in ("layer", "head", "step") if part in found.place_names]
            typer.echo(f"{found.name:24} {kinds[found.kind]:12} {', '.join(names):20} {found.title}")
        return
    chosen = find_view(name)
    folder = Path(run)
    root, run_id = (folder.parent, folder.name) if (folder / "run.json").is_file() else (runs, run)
    if not root.is_dir():
        raise UserError(f"There is no folder {root}: give the folder of runs with --runs.")
    subject: Subject
    if chosen.kind == "rows":
        subject = _rows(root, run_id)
        if "figure" in subject and chosen.page in ("quality", "safe_budget"):
            evaluation = f"{name} is drawn of an evaluation's, measured by `kvlab eval`"
            raise UserError(f"These rows are of a benchmark: {evaluation}.")
    else:
        entries = [entry for entry in list_runs(root) if run_id in (entry.run_id, entry.comparison_id)]
        if not entries:
            raise UserError(
                f"There is no run or comparison {quote_value(run_id)} in {root}: `kvlab runs ls` lists all."
            )
        if chosen.kind == "runs":
            comparison = entries[0].comparison_id
            subject = [open_run(root / entry.run_id) for entry in list_runs(root, comparison_id=comparison)]
        elif len(entries) > 1:
            ids = ", ".join(entry.run_id for entry in entries[:4])
            raise UserError(f"The view {name} is of one run: name one of this comparison, such as {ids}.")
        else:
            subject = open_run(root / entries[0].run_id)
    place = {"layer": layer, "head": head, "step": step}
    drawn = chosen.draw(subject, "light", **{part: value for part, value in place.items() if value is not None})
    if to is None:
        typer.echo(drawn.to("csv").decode(), nl=False)
        typer.echo(drawn.caption, err=True)
    else:
        typer.echo(f"{drawn.save(to)}: {drawn.caption}")


def _rows(root: Path, name: str) -> pd.DataFrame:
    """The rows of an evaluation or benchmark in a folder of runs; raises UserError if there is none of this name."""
    from kvlab.core.validation import quote_value
    from kvlab.papers.evaluations import origin_of
    from kvlab.results import speed_tables
    from kvlab.results.sources import Sources

    sources = Sources(root)
    found = {
        str(one): rows
        for every in (sources.benchmarks, sources.every_evaluation, sources.evaluations)
        if len(every)
        for one, rows in every.groupby("name", sort=False)
    }
    if name not in found:
        names = ", ".join(found) or "none"
        raise UserError(f"There is no evaluation or benchmark {quote_value(name)} in {root}: there are {names}.")
    rows = found[name]
    rows.attrs["source"] = speed_tables.origin(rows) if "figure" in rows else origin_of(rows)
    return rows
