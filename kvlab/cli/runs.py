"""`kvlab runs`: list, label, delete, export and import the contents of a folder of runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kvlab.common.formatting import format_bytes, model_title
from kvlab.common.terminal import print_wide
from kvlab.core import UserError, quote_value
from kvlab.trace.catalogue import list_runs
from kvlab.trace.user_labels import change_labels, change_tags

if TYPE_CHECKING:
    import pandas as pd

runs_commands = typer.Typer(help="List, find, label, delete, export and import the contents of a folder of runs.")
Root = Annotated[Path, typer.Option("--runs", help="the folder of runs")]
Names = Annotated[
    list[str], typer.Argument(metavar="ID...", help="ids from `kvlab runs ls`; evaluation/NAME if ambiguous")
]
RUNS = Path("runs")
SPANS = {"h": 3600, "d": 86400, "w": 7 * 86400}
FILTERS = ("kind", "state", "model", "method", "budget", "tag", "answer", "since", "until")
SHOWN = ("kind", "id", "title", "status", "created", "model", "methods", "budgets", "answer", "least_kl", "tags")


@runs_commands.command("ls")
def list_kept(
    text: Annotated[str, typer.Argument(help="words of the title, prompt, note, tags")] = "",
    root: Root = RUNS,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help=f"only these; repeatable. Names: {', '.join(FILTERS)} (days as 2026-01-31)"
        ),
    ] = None,
    starred: Annotated[bool, typer.Option("--starred")] = False,
    archived: Annotated[bool, typer.Option("--archived")] = False,
    sort: Annotated[
        str, typer.Option(help="created, title, answer, least_kl, score, tokens, runs, bytes ...; -created: reversed")
    ] = "created",
    limit: Annotated[int, typer.Option(help="rows; 0 for all", min=0)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """List comparisons, evaluations and benchmarks, newest first."""
    from kvlab.library.find import Search, is_day, list_all

    chosen: dict[str, list[str]] = {name: [] for name in FILTERS}
    for text_of_filter in where or []:
        name, equals, value = text_of_filter.partition("=")
        if not equals or name not in FILTERS:
            raise UserError(
                f"--where takes NAME=VALUE, not {quote_value(text_of_filter)}; the names are {', '.join(FILTERS)}."
            )
        chosen[name].append(value)
    since = "".join(chosen.pop("since")[-1:])
    until = "".join(chosen.pop("until")[-1:])
    for day in filter(None, (since, until)):
        if not is_day(day):
            raise UserError(f"{day[:40]!r} is no day: write it as 2026-01-31.")
    shelf = list_all(_folder(root))
    if shelf.unread:
        shelf.read(float("inf"))
        shelf = list_all(root)
    wanted = Search(
        text=text,
        starred=starred,
        archived=archived,
        since=since,
        until=until,
        sort=sort.removeprefix("-"),
        turned=sort.startswith("-"),
        **{f"{name}s": tuple(values) for name, values in chosen.items()},
    )
    found = shelf.find(wanted)
    shown = found.head(limit) if limit else found
    if as_json:
        typer.echo(shown.to_json(orient="records", indent=2, double_precision=15))
    else:
        table = Table(*SHOWN, caption=f"{len(shown)} of {len(found)}", caption_justify="left")
        for _, row in shown.iterrows():
            table.add_row(*[_cell(row, column) for column in SHOWN])
        print_wide(table)
    for problem in shelf.problems:
        typer.echo(f"Not listed: {problem}", err=True)


@runs_commands.command("label")
def label(
    names: Names,
    root: Root = RUNS,
    title: Annotated[str | None, typer.Option(help="a new title; the id stays")] = None,
    note: Annotated[str | None, typer.Option(help="a note (Markdown) in place of the previous one")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="add this tag; repeatable")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="remove this tag; repeatable")] = None,
    star: Annotated[bool | None, typer.Option("--star/--no-star")] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--no-archive", help="hide them from lists; nothing is deleted")
    ] = None,
) -> None:
    """Change their title, note, tags and star, or hide them from lists."""
    named = {"name": None if title is None else title.strip(), "note": note, "starred": star, "archived": archive}
    changes: dict[str, Any] = {field: value for field, value in named.items() if value is not None}
    if not changes and not tag and not untag:
        raise UserError("Name a change: --title, --note, --tag, --untag, --star or --archive.")
    # a batch counts as its comparisons
    members = [
        (row["kind"], member, row["title"]) for _, row in _rows(root, names).iterrows() for member in row["members"]
    ]
    if title is not None and len(members) > 1:
        raise UserError(f"A title is for one of them, and {len(members)} are named.")
    for kind, member, old_title in members:
        summary = [f"{field} {value}" for field, value in changes.items()]
        if changes:
            change_labels(root, member, kind, **changes)
        if tag or untag:
            now = change_tags(root, member, kind, add=tag or (), remove=untag or ())
            summary.append(", ".join(now.tags) or "no tags")
        typer.echo(f"{old_title}: {'; '.join(summary)}")


@runs_commands.command("rm")
def remove(names: Names, root: Root = RUNS) -> None:
    """Move them to the bin; `kvlab runs bin --restore` brings them back."""
    from kvlab.library.recycle_bin import delete

    for _, row in _rows(root, names).iterrows():
        gone = delete(root, row["kind"], row["members"], row["title"])
        typer.echo(f"{gone.title}: {format_bytes(gone.bytes)} in the bin as {gone.key}")


@runs_commands.command("bin")
def show_bin(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY...", help="with --restore; default: the last"),
    ] = None,
    root: Root = RUNS,
    restore: Annotated[bool, typer.Option("--restore", help="bring back what was deleted")] = False,
    empty: Annotated[bool, typer.Option("--empty", help="delete everything in it permanently")] = False,
) -> None:
    """List the contents of the bin, restore from it, or empty it."""
    from kvlab.library.recycle_bin import empty_bin, list_bin, restore_deleted

    if empty:
        typer.echo(f"{format_bytes(empty_bin(root))} freed")
        return
    listed = list_bin(root)
    if not restore:
        for entry in listed:
            size = format_bytes(entry.bytes)
            typer.echo(f"{entry.key}  {entry.deleted[:16]}  {size:>9}  {entry.kind} {entry.title}")
        return
    if not keys and not listed:
        raise UserError(f"The bin of {root} is empty.")
    for key in keys or [listed[0].key]:
        typer.echo(f"{restore_deleted(root, key).title} is restored")


def seconds_of(text: str) -> int:
    """Seconds from text such as 30d, 12h or 2w; raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*([hdw])\s*", text)
    if match is None:
        raise UserError(f"--older-than {quote_value(text)} is no span of time: write it like 30d, 12h or 2w.")
    return int(match[1]) * SPANS[match[2]]


@runs_commands.command("thin")
def thin_old(
    older_than: Annotated[str, typer.Option("--older-than", help="such as 30d, 12h or 2w")],
    root: Root = RUNS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be removed")] = False,
) -> None:
    """Remove the arrays of old recordings to free disk space; tables, texts and starred comparisons are kept."""
    from kvlab.trace.thinning import thin, thinnable

    found = thinnable(_folder(root), seconds_of(older_than))
    size = format_bytes(sum(run.bytes for run in found))
    if dry_run:
        for run in found:
            typer.echo(f"{run.created[:10]}  {format_bytes(run.bytes):>9}  {run.run_id}  {run.title[:60]}")
        typer.echo(f"{size} of arrays in {len(found)} runs would be removed; nothing was changed")
        return
    typer.echo(f"{format_bytes(thin(root, found))} freed in {len(found)} runs")


@runs_commands.command("export")
def export(
    names: Annotated[list[str] | None, typer.Argument(metavar="ID...")] = None,
    root: Root = RUNS,
    story: Annotated[str, typer.Option(help="export the story of this name with its comparisons")] = "",
    out: Annotated[Path, typer.Option(help="folder for the files")] = Path(),
) -> None:
    """Export each as one file for `kvlab runs import`; of a single run its whole comparison."""
    from kvlab.library.archive import SUFFIX, pack
    from kvlab.trace.stories import story_path

    if bool(names) == bool(story):
        raise UserError("Name what to export: ids of `kvlab runs ls`, or --story NAME.")
    chosen: list[tuple[Any, Any, str, str]]
    if story:
        chosen = [("story", [story], story, story_path(root, story).stem)]
    else:
        # Of a run, by its id or folder, its comparison; any other name as it is.
        comparisons = {run.run_id: run.comparison_id for run in list_runs(_folder(root))}
        rows = _rows(root, [*dict.fromkeys(comparisons.get(Path(name).name, name) for name in names or [])])
        chosen = [(row["kind"], row["members"], row["title"], row["id"]) for _, row in rows.iterrows()]
    for kind, members, title, stem in chosen:
        target = out / f"{stem}{SUFFIX}"
        made = pack(root, kind, members, title, target)
        typer.echo(f"{target}: {made.kind} {title}, {len(made.files)} files, {format_bytes(target.stat().st_size)}")


@runs_commands.command("import")
def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="files of `kvlab runs export`, or recordings (`kvlab watch`)"),
    ],
    root: Root = RUNS,
    model: Annotated[str | None, typer.Option(help="the model of a recording, where its name does not say")] = None,
) -> None:
    """Import exported files and recordings of other caches; every file is checked first."""
    from kvlab.library.archive import unpack
    from kvlab.watch.recording import is_recording

    root.mkdir(parents=True, exist_ok=True)
    for file in files:
        if is_recording(file):
            from kvlab.watch.run_folder import import_recording

            for path in import_recording(file, root, model):
                typer.echo(f"run {path.name} is in {root}")
            continue
        made = unpack(root, file)
        typer.echo(f"{made.kind} {made.title or made.names[0]}: {len(made.files)} files are in {root}")


def _folder(root: Path) -> Path:
    if not root.is_dir():
        raise UserError(f"There is no folder {root}: give the folder of runs with --runs.")
    return root


def _rows(root: Path, names: list[str]) -> pd.DataFrame:
    from kvlab.library.find import list_all, rows_of

    return rows_of(list_all(_folder(root)).table, names)


def _cell(row: pd.Series, name: str) -> str:
    value = row[name]
    if isinstance(value, tuple):
        return ", ".join(value)
    if name == "least_kl":
        return "" if value != value else f"{value:.4f}"
    if name == "model":
        return ", ".join(map(model_title, str(value).split(", ")))
    if name == "created":
        return str(value)[:16].replace("T", " ")
    return ("* " if name == "title" and row["starred"] else "") + str(value)[:60]
