"""Settings in which runs differ."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from kvlab.analysis.comparison.labels import distinct_names
from kvlab.common.model_title import model_title
from kvlab.requests.budget import Budget
from kvlab.requests.compare import FULL
from kvlab.trace.schema import RunRecord

ABSENT = "–"


def differing_settings(records: Sequence[RunRecord]) -> pd.DataFrame:
    """One row per setting that differs between runs, one column per run; empty for fewer than two runs.

    A hyper-parameter is compared only among runs of the same method. The full cache is ignored.
    """
    runs = [record for record in records if record.method != FULL.method]
    known = [_shared(record) for record in runs]
    rows = {name: [one[name] for one in known] for name in (known[0] if known else {})}
    for method in dict.fromkeys(record.method for record in runs):
        rows |= _of_method(method, runs)
    changed = {name: values for name, values in rows.items() if len(set(values) - {ABSENT}) > 1}
    if (models := changed.get("model")) is not None and len({*map(model_title, models)}) == len({*models}):
        changed["model"] = [*map(model_title, models)]
    table = pd.DataFrame(list(changed.values()), columns=distinct_names(runs), index=list(changed))
    return table.rename_axis("setting")


def _of_method(method: str, runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for record in runs if record.method == method for name in record.hyper_parameters)
    return {
        f"{method}: {name}": [
            _words(record.hyper_parameters.get(name)) if record.method == method else ABSENT for record in runs
        ]
        for name in names
    }


def _shared(record: RunRecord) -> dict[str, str]:
    """The settings every run has."""
    return {
        "method": record.method,
        "budget": Budget(record.budget).words,
        "preset": record.preset,
        "tokens kept by force": _words(list(record.force_keep)),
        "restored": _words(record.returned.model_dump() if record.returned else None),
        "decides every": f"{record.compress_every} steps",
        "new tokens": str(record.max_new_tokens),
        "seed": str(record.seed),
        "recorded": record.level,
        "model": record.model.name,
        "type": record.model.dtype,
        "chat template": _words(record.chat),
        "loading": _words(record.loading),
        "device": record.device,
        **{f"version of {name}": version for name, version in record.versions.items()},
    }


def _words(value: object) -> str:
    if value in (None, [], {}):
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
