"""Labels of compared runs, made of the settings in which they differ, and a table of these settings."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import pandas as pd

from kvlab.common.formatting import model_title
from kvlab.core import FULL, Budget, MethodChoice
from kvlab.trace.catalogue import RunEntry
from kvlab.trace.schema import RunRecord

SETTING = re.compile(r", (?=[A-Za-z_]\w*=)")  # separates settings; commas within a list are followed by a value
PLAIN = "default"
HasLabel: TypeAlias = RunRecord | RunEntry | MethodChoice


@dataclass(frozen=True)
class LabelParts:
    """A label parsed into its parts.

    Attributes:
        method: its name.
        budget: `20 %` or `128 slots`; "" if the method has none.
        preset: the preset, `default` if the label names none.
        settings: changed settings as (name, value) in the label's order.
        rest: the rest of the label, such as `keeping tokens 3-4`.
    """

    method: str
    budget: str
    preset: str = PLAIN
    settings: tuple[tuple[str, str], ...] = ()
    rest: str = ""

    @property
    def changed(self) -> str:
        """Everything that differs from the method's defaults; "" if nothing does."""
        preset = [self.preset] if self.preset != PLAIN else []
        rest = [self.rest] if self.rest else []
        return ", ".join([*preset, *(f"{name}={value}" for name, value in self.settings), *rest])


def parse_label(run: HasLabel) -> LabelParts:
    """Parse a run's label; a custom label is all `rest`."""
    if run.label == "full cache":
        return LabelParts(run.method, "")
    amount = Budget(run.budget).description
    heads = {f"{run.method} {amount}": "" if run.method == "full" else amount, run.method: ""}
    head = next((head for head in heads if run.label == head or run.label.startswith((f"{head} ", f"{head},"))), None)
    if head is None:
        return LabelParts(run.method, "", rest=run.label)
    inside = ""
    rest = run.label.removeprefix(head).strip()
    if rest.startswith("("):
        # The content of the leading parentheses, and what follows them.
        depths = accumulate({"(": 1, ")": -1}.get(character, 0) for character in rest)
        end = next((place for place, depth in enumerate(depths) if not depth), len(rest))
        inside = rest[1:end]
        rest = rest[end + 1 :]
    pieces = SETTING.split(f", {inside}") if inside else []
    preset = next((piece.removeprefix(", ") for piece in pieces[:1] if piece), PLAIN)
    pairs = [piece.partition("=") for piece in pieces[1:]]
    settings = tuple((name, value) for name, _, value in pairs)
    return LabelParts(run.method, heads[head], preset, settings, rest.removeprefix(",").strip())


def distinct_names(runs: Sequence[HasLabel]) -> list[str]:
    """A unique name for each run, made only of what differs between `runs`.

    Method and budget where they differ, preset and settings where runs of one method differ, and force-kept tokens.
    Parts shared by all are left out (unless there is only one run). Runs that differ in none of it are numbered.
    """
    return number_duplicates(differing_parts(runs))


def differing_parts(runs: Sequence[HasLabel], *, budget: bool = True) -> list[str]:
    """As `distinct_names`, without numbers; `budget=False` omits the budget, for tables with a column per budget."""
    known = [parse_label(run) for run in runs]
    alone = len(known) == 1
    methods = len({one.method for one in known}) > 1 or alone
    budgets = budget and (len({one.budget for one in known if one.budget}) > 1 or alone)
    named = []
    for one in known:
        words = [one.method] if methods else []
        words += [one.budget] if budgets and one.budget else []
        # What distinguishes it from the others of its method, besides the budget.
        siblings = [other for other in known if other.method == one.method]
        apart = [one.preset] if len({other.preset for other in siblings}) > 1 else []
        settings = dict(one.settings)
        for name in dict.fromkeys(name for other in siblings for name, _ in other.settings):
            if len({dict(other.settings).get(name) for other in siblings}) > 1 and name in settings:
                apart.append(f"{name}={settings[name]}")
        if len({other.rest for other in siblings}) > 1 and one.rest:
            apart.append(one.rest)
        plain = not apart and len({(other.settings, other.rest) for other in siblings}) > 1
        words += [PLAIN] if plain else apart
        named.append(" ".join(words) or one.method)
    return named


def number_duplicates(names: Sequence[str]) -> list[str]:
    """Append a number to names that occur more than once."""
    counts = Counter(names)
    numbered = Counter[str]()
    found = []
    for name in names:
        numbered[name] += 1
        found.append(name if counts[name] == 1 else f"{name} #{numbered[name]}")
    return found


ABSENT = "–"


def differing_settings(records: Sequence[RunRecord]) -> pd.DataFrame:
    """One row per setting that differs between runs, one column per run; empty for fewer than two runs.

    A hyper-parameter is compared only among runs of the same method. The full cache is ignored.
    """
    runs = [record for record in records if record.method != FULL.method]
    # The settings every run has.
    known = [
        {
            "method": record.method,
            "budget": Budget(record.budget).description,
            "preset": record.preset,
            "tokens kept by force": _value_text(list(record.force_keep)),
            "restored": _value_text(record.returned.model_dump() if record.returned else None),
            "decides every": f"{record.compress_every} steps",
            "new tokens": str(record.max_new_tokens),
            "seed": str(record.seed),
            "recorded": record.level,
            "model": record.model.name,
            "type": record.model.dtype,
            "chat template": _value_text(record.chat),
            "loading": _value_text(record.loading),
            "device": record.device,
            **{f"version of {name}": version for name, version in record.versions.items()},
        }
        for record in runs
    ]
    rows: dict[str, list[str]] = {name: [one[name] for one in known] for name in (known[0] if known else {})}
    for method in dict.fromkeys(record.method for record in runs):
        names = dict.fromkeys(name for record in runs if record.method == method for name in record.hyper_parameters)
        rows |= {
            f"{method}: {name}": [
                _value_text(record.hyper_parameters.get(name)) if record.method == method else ABSENT for record in runs
            ]
            for name in names
        }
    changed = {name: values for name, values in rows.items() if len(set(values) - {ABSENT}) > 1}
    if (models := changed.get("model")) is not None and len({*map(model_title, models)}) == len({*models}):
        changed["model"] = [*map(model_title, models)]
    table = pd.DataFrame(list(changed.values()), columns=distinct_names(runs), index=list(changed))
    return table.rename_axis("setting")


def _value_text(value: object) -> str:
    if value in (None, [], {}):
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
