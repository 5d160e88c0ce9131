"""Where a figure's data comes from: runs, evaluations or benchmarks, and their settings against the paper's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from pydantic import JsonValue

from kvlab.common.formatting import ONE_PROMPT, model_title, prompts
from kvlab.trace.reader import Run

# Methods without published settings.
WITHOUT_PAPER = ("full", "packed", "sparse", "window", "random", "compose", "exactmerge", "exactmerge2")
PRESET = "preset"
PAPER = "paper"
UNDER = "under "
PUBLISHED = f"{UNDER}preset=paper"
SHOWN = 4  # settings named before the rest is counted


@dataclass(frozen=True)
class Provenance:
    """Source of a figure's data; `str()` is the line under the figure, and it is false if there is nothing to say.

    `details` are method, model, prompts, device and versions, as far as they apply; `settings` says under which
    settings a method with a paper ran. `place` (such as layer and head) goes before the line, `note` after it.
    """

    source: str = ""
    details: tuple[str, ...] = ()
    settings: str = ""
    run_ids: tuple[str, ...] = ()
    comparison_id: str = ""
    place: str = ""
    note: str = ""
    others: tuple[Provenance, ...] = ()
    separator: str = "; "

    def __str__(self) -> str:
        text = " · ".join(filter(None, (self.place, self.source, *self.details, self.settings, self.note)))
        return self.separator.join((text, *map(str, self.others)))

    def __bool__(self) -> bool:
        return bool(str(self))

    def at(self, place: str) -> Provenance:
        """The same with `place` before the rest."""
        return replace(self, place=" · ".join(filter(None, (place, self.place))))

    @property
    def all_run_ids(self) -> set[str]:
        """The recorded runs behind the figure."""
        return set(self.run_ids).union(*(other.all_run_ids for other in self.others))

    @property
    def short(self) -> str:
        """The run, evaluation or benchmark alone: `run keepkv 20 % (20260101-120000)`."""
        return f"run {self.details[0]} ({self.run_ids[0][:15]})" if self.run_ids else self.place or self.source


FigureSource = Provenance | str  # text: no recorded run is behind the figure


def of_run(run: Run) -> Provenance:
    """Run, method, model, prompt, device and versions, and its settings compared with the paper's, if it has one."""
    record = run.record
    settings = PUBLISHED
    if record.method in WITHOUT_PAPER:
        settings = ""
    elif record.departures is None:
        settings = f"{UNDER}settings not compared with the paper's (an older run)"
    elif record.departures:
        values = record.hyper_parameters
        named = [f"{name} {_text(values.get(name))}, not {_text(value)}" for name, value in record.departures.items()]
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        differences = "; ".join(named[:SHOWN]) + more
        settings = f"{UNDER}{record.preset} settings, not the paper's: {differences}"
        if record.preset.startswith(PAPER):
            settings = f"{UNDER}{PRESET}={record.preset} but for {differences}"
    elif record.preset.startswith(PAPER):
        settings = f"{UNDER}preset={record.preset}"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    details = (
        record.label,
        model_title(record.model.name),
        f"{ONE_PROMPT} of {record.prompt_tokens:,} tokens",
        record.device,
        versions,
    )
    return Provenance(f"run {record.run_id}", details, settings, (record.run_id,))


def of_batch(batch: str, count: int) -> Provenance:
    """The provenance of a figure over `count` prompts of a batch."""
    return Provenance(f"batch {batch}, {prompts(count)}")


def of_comparison(runs: Sequence[Run]) -> Provenance:
    """Comparison, model and prompt."""
    record = runs[0].record
    details = (record.model.title, f"{ONE_PROMPT} of {record.prompt_tokens:,} tokens")
    return Provenance(f"comparison {record.comparison_id}", details, comparison_id=record.comparison_id)


def join_sources(first: Provenance, *others: Provenance, separator: str = "; ") -> Provenance:
    """Several sources of one figure, rendered one after the other."""
    return replace(first, others=others, separator=separator)


def as_published(method: str, options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The options on top of the paper's preset, if the method has a paper and no other preset is named."""
    return {**({} if method in WITHOUT_PAPER else {PRESET: PAPER}), **options}


def settings_of_rows(rows: pd.DataFrame) -> str:
    """The settings that rows of an evaluation or benchmark ran under; empty if no method has a paper."""
    if "hyper_parameters" not in rows:
        return ""
    pairs = rows[["method", "hyper_parameters"]].drop_duplicates().itertuples(index=False)
    published = []
    for method, text in pairs:
        options = json.loads(text or "{}")
        of_parts = [value for name, value in options.items() if name.endswith(f"_{PRESET}")]  # of a composition
        if method not in WITHOUT_PAPER or of_parts:
            published.append(PAPER in str(options.get(PRESET, "")) or PAPER in of_parts)
    if not published:
        return ""
    if all(published):
        return PUBLISHED
    return f"{UNDER}kvlab's default settings{' in part' if any(published) else ''}, not preset=paper"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
