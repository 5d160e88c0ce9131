"""List everything in a runs folder as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from kvlab.common.users import viewer
from kvlab.core.errors import UserError
from kvlab.library.find import Search, find
from kvlab.library.items import FOLDERS as RESULTS
from kvlab.library.items import item_table
from kvlab.library.run_results import AllLabels, cache_results, without_results
from kvlab.trace import catalogue, index
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons
from kvlab.trace.user_labels import FOLDER as LABELS
from kvlab.trace.user_labels import FOLDERS as LABEL_FOLDERS
from kvlab.trace.user_labels import all_labels


@dataclass(frozen=True)
class Listing:
    """The table, and the comparisons whose results are not cached yet."""

    root: Path
    table: pd.DataFrame
    unread: tuple[ComparisonEntry, ...]
    said: AllLabels
    problems: tuple[str, ...] = ()  # a sentence per run that cannot be listed

    def find(self, wanted: Search) -> pd.DataFrame:
        """The rows that match a search, in its order."""
        return find(self.table, wanted, partial(catalogue.comparisons_with, self.root))

    def read(self, seconds: float) -> int:
        """Cache missing results for about `seconds`; returns how many comparisons are left."""
        return cache_results(self.root, self.unread, self.said, seconds)


def list_all(root: Path) -> Listing:
    """The current listing.

    Raises:
        UserError: the index of runs cannot be used.
    """
    root = Path(root)
    comparisons = list_comparisons(root)
    known = catalogue.results(root)
    said = all_labels(root)
    table = item_table(root, comparisons, known, said)
    listed = {run.run_id for comparison in comparisons for run in comparison.runs}
    return Listing(
        root, table, tuple(without_results(comparisons, known, said)), said, tuple(catalogue.left_out(root, listed))
    )


def stamp(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Stamp of the folder's state and the current user: equal stamps mean equal listings, except for running runs."""
    root = Path(root)
    kept = [root, *(root / f"{index.FILE}{suffix}" for suffix in ("", "-wal"))]
    said = [root / LABELS / folder for folder in LABEL_FOLDERS.values()]
    results = [folder for name in RESULTS.values() for folder in (root / name, *(root / name).glob("*"))]
    found = ((path, path.stat()) for path in (*kept, *said, *results) if path.exists())
    files = tuple((str(path), state.st_mtime_ns, state.st_size) for path, state in found)
    return ((viewer(), 0, 0), ("in memory", index.memory_changes(root), 0), *files)


def rows_of(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The rows with these names, in order: `kind/id`, or an id unique among kinds."""
    found = []
    for name in names:
        kind, slash, rest = name.partition("/")
        here = table[(table["kind"] == kind) & (table["id"] == rest)] if slash else table[table["id"] == name]
        here = here if len(here) else table[[name in members for members in table["members"]]]
        if len(here) != 1:
            why = "no such item" if here.empty else "several kinds have it: write " + " or ".join(here["kind"] + "/…")
            raise UserError(f"There is no {name[:80]!r} here ({why}): `kvlab runs ls` lists all.")
        found.append(here)
    return pd.concat(found) if found else table.iloc[:0]
