"""The kept things of a folder of runs as one table, read anew each time it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from kvlab.common.errors import UserError
from kvlab.library.entries import FOLDERS as RESULTS
from kvlab.library.entries import entries
from kvlab.library.find import Wanted, find
from kvlab.library.outcomes import Said, read_outcomes, unread
from kvlab.server.users import viewer
from kvlab.trace import catalogue, index
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons
from kvlab.trace.user_labels import FOLDER as LABELS
from kvlab.trace.user_labels import FOLDERS as LABEL_FOLDERS
from kvlab.trace.user_labels import all_labels


@dataclass(frozen=True)
class Shelf:
    """What there is, and the comparisons whose outcomes are not in the index yet."""

    root: Path
    table: pd.DataFrame
    unread: tuple[ComparisonEntry, ...]
    said: Said
    problems: tuple[str, ...] = ()  # a sentence for each run that no list can show

    def find(self, wanted: Wanted) -> pd.DataFrame:
        """The rows that are looked for, in their order."""
        return find(self.table, wanted, partial(catalogue.comparisons_with, self.root))

    def read(self, seconds: float) -> int:
        """Read outcomes that are not known yet for about so many seconds; returns of how many none are known still."""
        return read_outcomes(self.root, self.unread, self.said, seconds)


def look(root: Path) -> Shelf:
    """The shelf as it is now.

    Raises:
        UserError: the index of runs cannot be used.
    """
    root = Path(root)
    comparisons, known, said = list_comparisons(root), catalogue.results(root), all_labels(root)
    table = entries(root, comparisons, known, said)
    listed = {run.run_id for comparison in comparisons for run in comparison.runs}
    return Shelf(root, table, tuple(unread(comparisons, known, said)), said, tuple(catalogue.left_out(root, listed)))


def stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Names what is kept as it is on disk now, and who looks: equal stamps, equal shelves but for runs still going."""
    root = Path(root)
    kept = [root, *(root / f"{index.FILE}{suffix}" for suffix in ("", "-wal"))]
    said = [root / LABELS / folder for folder in LABEL_FOLDERS.values()]
    results = [folder for name in RESULTS.values() for folder in (root / name, *(root / name).glob("*"))]
    found = ((path, path.stat()) for path in (*kept, *said, *results) if path.exists())
    files = tuple((str(path), state.st_mtime_ns, state.st_size) for path, state in found)
    return ((viewer(), 0, 0), ("in memory", index.memory_changes(root), 0), *files)


def read_all(root: Path) -> None:
    """Read every outcome that is not known yet, as at the end of a comparison."""
    look(root).read(float("inf"))


def rows_of(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The rows these names mean, in their order: `kind/id`, or an id that only one kind has."""
    found = []
    for name in names:
        kind, slash, rest = name.partition("/")
        here = table[(table["kind"] == kind) & (table["id"] == rest)] if slash else table[table["id"] == name]
        here = here if len(here) else table[[name in members for members in table["members"]]]
        if len(here) != 1:
            why = "there is none" if here.empty else "several kinds have it: write " + " or ".join(here["kind"] + "/…")
            raise UserError(f"{name[:80]!r} names nothing that is kept here ({why}): `kvlab runs ls` lists all.")
        found.append(here)
    return pd.concat(found) if found else table.iloc[:0]
