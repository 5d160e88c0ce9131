"""Which of the kept things one looks for: words, filters and an order, all of which fit into an address."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kvlab.common.errors import UserError

ANSWERS = {"right": "all right", "some": "some right", "wrong": "none right", "unknown": "not judged"}
SORTS = {
    "created": "date", "title": "title", "answer": "right answers", "least_kl": "closest KL", "score": "score",
    "tokens": "prompt tokens", "runs": "runs", "bytes": "bytes", "status": "state", "model": "model",
}  # fmt: skip
RISING = ("title", "least_kl", "status", "model")  # sorted from the least, where nobody asked for another order
SEPARATOR = "~"  # between the values of one filter in an address; no name of a method or model holds it


@dataclass(frozen=True)
class Wanted:
    """What is looked for; an empty filter lets everything through.

    Attributes:
        text: words that all stand in title, name, note, tags, model, id or prompt, in any order, case aside.
        answers: of `ANSWERS`.
        since, until: days (ISO 8601), both included.
        sort: of `SORTS`; `turned` reverses its usual order.
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

    @property
    def words(self) -> list[str]:
        """The words of the text."""
        return self.text.casefold().split()


FILTERS = ("kinds", "states", "models", "methods", "budgets", "tags", "owners", "answers")


def find(table: pd.DataFrame, wanted: Wanted, in_prompt: Callable[[Sequence[str]], Collection[str]]) -> pd.DataFrame:
    """The rows of `entries` that are looked for, in the order asked for.

    `in_prompt` gives the ids of the comparisons whose prompt holds all of some words.
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
        kept &= pd.Series([not set(wanted.models).isdisjoint(name.split(", ")) for name in table["model"]], dtype=bool)
    if wanted.answers:
        kept &= answer_kinds(table).isin(wanted.answers)
    if wanted.since:
        kept &= table["created"].str[:10] >= wanted.since
    if wanted.until:
        kept &= table["created"].str[:10] <= wanted.until
    found = table[kept]
    if wanted.words:
        found = found[_holds(found, wanted.words, in_prompt)]
    return ordered(found, wanted)


def answer_kinds(table: pd.DataFrame) -> pd.Series:
    """Of each row, which of `ANSWERS` it is."""
    judged, right = table["judged"].fillna(0), table["right"].fillna(0)
    kinds = pd.Series("some", table.index)
    kinds[right == judged] = "right"
    kinds[right == 0] = "wrong"
    kinds[judged == 0] = "unknown"
    return kinds


def ordered(table: pd.DataFrame, wanted: Wanted) -> pd.DataFrame:
    """The rows sorted; those that lack what is sorted by come last, among equals the newest first."""
    if wanted.sort not in SORTS:
        raise UserError(f"Runs cannot be sorted by {wanted.sort[:40]!r}: choose one of {', '.join(SORTS)}.")
    key = table["right"] / table["judged"] if wanted.sort == "answer" else table[wanted.sort]
    if wanted.sort in ("title", "model"):
        key = key.str.casefold()
    rising = (wanted.sort in RISING) != wanted.turned
    order = key.sort_values(ascending=rising, kind="stable", na_position="last").index
    return table.loc[order].reset_index(drop=True)


def describe_query(wanted: Wanted) -> str:
    """What is looked for and in which order, as it stands under a table."""
    named = {name: " or ".join(getattr(wanted, name)) for name in FILTERS} | {"answers": _answers(wanted)}
    asked = [f"“{wanted.text}”"] if wanted.text else []
    asked += [f"{name.removesuffix('s')} {words}" for name, words in named.items() if words]
    asked += [f"{word} {day}" for word, day in (("from", wanted.since), ("to", wanted.until)) if day]
    asked += [word for word, on in (("starred", wanted.starred), ("archived", wanted.archived)) if on]
    return " · ".join([*asked, f"sorted by {SORTS[wanted.sort]}{', the other way round' if wanted.turned else ''}"])


def _answers(wanted: Wanted) -> str:
    return " or ".join(ANSWERS[name] for name in wanted.answers if name in ANSWERS)


def to_address(wanted: Wanted) -> dict[str, str]:
    """The parameters of an address that say the same; what is as usual is left out."""
    plain = {name: getattr(wanted, name) for name in ("text", "since", "until")}
    several = {name: SEPARATOR.join(getattr(wanted, name)) for name in FILTERS}
    flags = {name: "1" if getattr(wanted, name) else "" for name in ("starred", "archived", "turned")}
    sort = {"sort": wanted.sort if wanted.sort != Wanted.sort else ""}
    return {name: value for name, value in (plain | several | flags | sort).items() if value}


def from_address(given: Mapping[str, str]) -> Wanted:
    """What an address asks for; what it does not say, or says of nothing known, is as usual."""
    several = {name: tuple(filter(None, given.get(name, "").split(SEPARATOR))) for name in FILTERS}
    flags = {name: given.get(name) == "1" for name in ("starred", "archived", "turned")}
    days = {name: given.get(name, "") if is_day(given.get(name, "")) else "" for name in ("since", "until")}
    sort = given.get("sort", "")
    return Wanted(
        text=given.get("text", ""), **several, **flags, **days, sort=sort if sort in SORTS else Wanted.sort  # type: ignore[arg-type]
    )  # fmt: skip


def is_day(text: str) -> bool:
    """Whether this is a day such as `2026-01-31`."""
    try:
        return pd.Timestamp(text).strftime("%Y-%m-%d") == text
    except (ValueError, OverflowError, TypeError):
        return False


def _holds(
    table: pd.DataFrame, words: Sequence[str], in_prompt: Callable[[Sequence[str]], Collection[str]]
) -> list[bool]:
    """A word may stand anywhere: one in the title and the other in the prompt is a hit."""
    hits = {word: set(in_prompt([word])) for word in words}
    columns = [table[name] for name in ("id", "title", "name", "note", "model", "status", "tags", "methods", "members")]
    kept = []
    for identity, title, name, note, model, status, tags, methods, members in zip(*columns, strict=True):
        said = " ".join((identity, title, name, note, model, status, *tags, *methods)).casefold()
        kept.append(all(word in said or not hits[word].isdisjoint(members) for word in words))
    return kept
