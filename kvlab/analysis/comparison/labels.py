"""Names of runs that stand beside each other: what differs between them, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvlab.requests.budget import Amount, Budget

SETTING = re.compile(r", (?=[A-Za-z_]\w*=)")  # between settings; a list's own commas are followed by a value
PLAIN = "default"


class Named(Protocol):
    """What a name is made of: a run's record, its row in the catalogue, or a choice of a method."""

    @property
    def method(self) -> str: ...
    @property
    def budget(self) -> Amount: ...
    @property
    def label(self) -> str: ...


@dataclass(frozen=True)
class Parts:
    """A label taken apart.

    Attributes:
        method: its name.
        budget: `20 %` or `128 slots`; "" where the method takes none.
        preset: the named settings it started from, `default` where the label names none.
        settings: what was changed beside, as (name, value) in the label's order.
        rest: what else the label says, such as `keeping tokens 3-4`.
    """

    method: str
    budget: str
    preset: str = PLAIN
    settings: tuple[tuple[str, str], ...] = ()
    rest: str = ""

    @property
    def changed(self) -> str:
        """Everything that departs from the method's defaults, in words; "" where nothing does."""
        preset = [self.preset] if self.preset != PLAIN else []
        rest = [self.rest] if self.rest else []
        return ", ".join([*preset, *(f"{name}={value}" for name, value in self.settings), *rest])


def parts(run: Named) -> Parts:
    """The parts of a run's label; a label in other words than kvlab's own is all `rest`."""
    if run.label == "full cache":
        return Parts(run.method, "")
    amount = Budget(run.budget).words
    heads = {f"{run.method} {amount}": "" if run.method == "full" else amount, run.method: ""}
    head = next((head for head in heads if _begins(run.label, head)), None)
    if head is None:
        return Parts(run.method, "", rest=run.label)
    inside, rest = _closed(run.label.removeprefix(head).strip())
    pieces = SETTING.split(f", {inside}") if inside else []
    preset = next((piece.removeprefix(", ") for piece in pieces[:1] if piece), PLAIN)
    pairs = [piece.partition("=") for piece in pieces[1:]]
    settings = tuple((name, value) for name, _, value in pairs)
    return Parts(run.method, heads[head], preset, settings, rest.removeprefix(",").strip())


def distinct(runs: Sequence[Named]) -> list[str]:
    """A name for each run: distinct, and made of what differs between `runs` only.

    The method and the budget where they differ; preset and settings where runs of one method differ in them; what was
    kept by force. What all share is not named, but for what names a run that is alone. Runs that differ in none of it
    are numbered.
    """
    return numbered(differing(runs))


def differing(runs: Sequence[Named], *, budget: bool = True) -> list[str]:
    """As `distinct`, without numbers; `budget=False` leaves the budget out, for a table whose columns are budgets."""
    known = [parts(run) for run in runs]
    alone = len(known) == 1
    methods = len({one.method for one in known}) > 1 or alone
    budgets = budget and (len({one.budget for one in known if one.budget}) > 1 or alone)
    named = []
    for one in known:
        words = [one.method] if methods else []
        words += [one.budget] if budgets and one.budget else []
        words += _settings(one, [other for other in known if other.method == one.method])
        named.append(" ".join(words) or one.method)
    return named


def numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number behind each that stands more than once."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if names.count(name) == 1 else f"{name} #{seen[name]}")
    return found


def _begins(label: str, head: str) -> bool:
    return label == head or label.startswith((f"{head} ", f"{head},"))


def _settings(one: Parts, siblings: Sequence[Parts]) -> list[str]:
    """What tells `one` from the others of its method, beside the budget."""
    words = [one.preset] if len({other.preset for other in siblings}) > 1 else []
    own = dict(one.settings)
    for name in dict.fromkeys(name for other in siblings for name, _ in other.settings):
        if len({dict(other.settings).get(name) for other in siblings}) > 1 and name in own:
            words.append(f"{name}={own[name]}")
    if len({other.rest for other in siblings}) > 1 and one.rest:
        words.append(one.rest)
    plain = not words and len({(other.settings, other.rest) for other in siblings}) > 1
    return [PLAIN] if plain else words


def _closed(text: str) -> tuple[str, str]:
    """What stands in the parentheses that open the text, and what follows them."""
    if not text.startswith("("):
        return "", text
    depth = 0
    for place, sign in enumerate(text):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if not depth:
            return text[1:place], text[place + 1 :]
    return text[1:], ""
