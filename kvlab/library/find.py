"""Search the table of runs by words, filters and order; a search fits into a URL, and may be saved as a named view."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.formatting import model_title
from kvlab.common.lab import viewer
from kvlab.core import UserError, check_text
from kvlab.library.items import FOLDERS as RESULTS
from kvlab.library.items import AllLabels, cache_results, item_table, without_results
from kvlab.trace import catalogue, index
from kvlab.trace.catalogue import ComparisonEntry, list_comparisons
from kvlab.trace.user_labels import FOLDER as LABELS
from kvlab.trace.user_labels import FOLDERS as LABEL_FOLDERS
from kvlab.trace.user_labels import all_labels

ANSWERS = {"right": "all right", "some": "some right", "wrong": "none right", "unknown": "not judged"}
SORTS = {
    "created": "date", "title": "title", "answer": "right answers", "least_kl": "smallest KL", "score": "score",
    "tokens": "prompt tokens", "runs": "runs", "bytes": "bytes", "status": "state", "model": "model",
}  # fmt: skip
RISING = ("title", "least_kl", "status", "model")  # ascending by default
SEPARATOR = "~"  # between the values of a filter in a URL; not part of any method or model name


@dataclass(frozen=True)
class Search:
    """A search; empty filters match everything.

    Attributes:
        text: words that must all occur in title, name, note, tags, model, id or prompt, in any order, ignoring case.
        answers: keys of `ANSWERS`.
        since, until: days (ISO 8601), inclusive.
        sort: key of `SORTS`; `turned` reverses its default order.
    """

    text: str = ""
    kinds: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    starred: bool = False
    archived: bool = False
    since: str = ""
    until: str = ""
    sort: str = "created"
    turned: bool = False


FILTERS = ("kinds", "states", "models", "methods", "budgets", "tags", "owners", "answers")


def find(table: pd.DataFrame, wanted: Search, in_prompt: Callable[[Sequence[str]], Collection[str]]) -> pd.DataFrame:
    """The matching rows of `item_table` in the requested order.

    `in_prompt` returns the ids of the comparisons whose prompt contains all given words.
    """
    kept = table["archived"] == wanted.archived
    if wanted.starred:
        kept &= table["starred"]
    for column, values in (("kind", wanted.kinds), ("status", wanted.states), ("owner", wanted.owners)):
        if values:
            kept &= table[column].isin(values)
    for column, values in (("methods", wanted.methods), ("budgets", wanted.budgets), ("tags", wanted.tags)):
        if values:
            kept &= pd.Series([not set(values).isdisjoint(found) for found in table[column]], table.index, dtype=bool)
    if wanted.models:
        asked = set(wanted.models)
        of_row = [{*names, *map(model_title, names)} for names in table["model"].str.split(", ")]
        kept &= pd.Series([not asked.isdisjoint(names) for names in of_row], dtype=bool)
    if wanted.answers:
        # The key of `ANSWERS` for each row.
        judged = table["judged"].fillna(0)
        right = table["right"].fillna(0)
        kinds = pd.Series("some", table.index)
        kinds[right == judged] = "right"
        kinds[right == 0] = "wrong"
        kinds[judged == 0] = "unknown"
        kept &= kinds.isin(wanted.answers)
    if wanted.since:
        kept &= table["created"].str[:10] >= wanted.since
    if wanted.until:
        kept &= table["created"].str[:10] <= wanted.until
    found = table[kept]
    search_words = wanted.text.casefold().split()
    if search_words:
        # Each word may be in any field: one in the title and another in the prompt also match.
        hits = {word: set(in_prompt([word])) for word in search_words}
        is_match = []
        for row in found.itertuples():
            fields = (row.id, row.title, row.name, row.note, row.model, row.status, *row.tags, *row.methods)
            said = " ".join(fields).casefold()
            is_match.append(all(word in said or not hits[word].isdisjoint(row.members) for word in hits))
        found = found[pd.Series(is_match, found.index, dtype=bool)]
    # The rows sorted, missing values last, ties newest first.
    if wanted.sort not in SORTS:
        raise UserError(f"Runs cannot be sorted by {wanted.sort[:40]!r}: choose one of {', '.join(SORTS)}.")
    key = found["right"] / found["judged"] if wanted.sort == "answer" else found[wanted.sort]
    if wanted.sort in ("title", "model"):
        key = key.str.casefold()
    rising = (wanted.sort in RISING) != wanted.turned
    order = key.sort_values(ascending=rising, kind="stable", na_position="last").index
    return found.loc[order].reset_index(drop=True)


def describe_search(wanted: Search) -> str:
    """What is looked for and in which order, as it stands under a table."""
    answers = " or ".join(ANSWERS[name] for name in wanted.answers if name in ANSWERS)
    named = {name: " or ".join(getattr(wanted, name)) for name in FILTERS} | {"answers": answers}
    asked = [f"“{wanted.text}”"] if wanted.text else []
    asked += [f"{name.removesuffix('s')} {words}" for name, words in named.items() if words]
    asked += [f"{word} {day}" for word, day in (("from", wanted.since), ("to", wanted.until)) if day]
    asked += [word for word, on in (("starred", wanted.starred), ("archived", wanted.archived)) if on]
    return " · ".join([*asked, f"sorted by {SORTS[wanted.sort]}{', reversed' if wanted.turned else ''}"])


def to_url(wanted: Search) -> dict[str, str]:
    """URL parameters of a search, without defaults."""
    plain = {name: getattr(wanted, name) for name in ("text", "since", "until")}
    several = {name: SEPARATOR.join(getattr(wanted, name)) for name in FILTERS}
    flags = {name: "1" if getattr(wanted, name) else "" for name in ("starred", "archived", "turned")}
    sort = {"sort": wanted.sort if wanted.sort != Search.sort else ""}
    return {name: value for name, value in (plain | several | flags | sort).items() if value}


def from_url(parameters: Mapping[str, str]) -> Search:
    """The search of URL parameters; missing or invalid ones use the defaults."""
    fields: dict[str, Any] = {"text": parameters.get("text", "")}
    fields |= {name: tuple(filter(None, parameters.get(name, "").split(SEPARATOR))) for name in FILTERS}
    fields |= {name: parameters.get(name) == "1" for name in ("starred", "archived", "turned")}
    days = {name: parameters.get(name, "") for name in ("since", "until")}
    fields |= {name: day if is_day(day) else "" for name, day in days.items()}
    sort = parameters.get("sort", "")
    return Search(**fields, sort=sort if sort in SORTS else Search.sort)


def is_day(text: str) -> bool:
    """Whether this is a day such as `2026-01-31`."""
    try:
        return pd.Timestamp(text).strftime("%Y-%m-%d") == text
    except (ValueError, OverflowError, TypeError):
        return False


VIEWS_FOLDER = "views"
LONGEST_NAME = 80


class SavedView(BaseModel):
    """A name and URL parameters."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    query: dict[str, str] = Field(default_factory=dict)


def saved_views(root: Path) -> list[SavedView]:
    """All readable views, by name."""
    found = []
    for file in (Path(root) / VIEWS_FOLDER).glob("*.json"):
        try:
            found.append(SavedView.model_validate_json(file.read_bytes()))
        except (OSError, ValidationError):
            continue
    return sorted(found, key=lambda view: view.name.casefold())


def save_view(root: Path, name: str, query: dict[str, str]) -> SavedView:
    """Save a view, replacing one of the same name. Raises UserError for an invalid name."""
    check_text(name, "The name")
    view = SavedView(name=name.strip()[:LONGEST_NAME] or "view", query=query)
    replace_text(_view_path(root, view.name), view.model_dump_json(indent=1))
    return view


def remove_view(root: Path, name: str) -> None:
    """Delete a view."""
    _view_path(root, name).unlink(missing_ok=True)


def _view_path(root: Path, name: str) -> Path:
    slug = re.sub(r"[^\w]+", "-", name.casefold()).strip("-")
    if not slug:
        raise UserError("Give the view a name with at least one letter or digit.")
    return Path(root) / VIEWS_FOLDER / f"{slug[:LONGEST_NAME]}.json"


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
