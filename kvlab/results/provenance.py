"""Under which settings a claim is judged: the paper's own (`preset=paper`), or others, which are then named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pandas as pd
from pydantic import JsonValue

from kvlab.requests.method_spec import parse_named, with_options
from kvlab.trace.schema import RunRecord

# Methods nobody published settings of.
WITHOUT_PAPER = ("full", "packed", "window", "compose", "exactmerge", "exactmerge2")
PRESET, PAPER = "preset", "paper"
UNDER = "under "  # how the words begin, by which they are found in a line of origin
PUBLISHED = f"{UNDER}preset=paper"
NEXT_RUN = re.compile("; (?:evictions|run) ")  # how a line of origin goes on to another run
SHOWN = 4  # settings named before the rest is counted


def as_published(method: str, options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The options on top of the paper's settings, where the method has a paper and no other preset is named."""
    return {**({} if method in WITHOUT_PAPER else {PRESET: PAPER}), **options}


def under_paper_settings(method: str) -> str:
    """A method spec with its paper's preset, if none is named: `keepkv:preset=paper:rule=votes`."""
    name, options = parse_named(method)
    return with_options(name, as_published(name, options))


def of_record(record: RunRecord) -> str:
    """In words what a run ran under; nothing for a method without a paper."""
    if record.method in WITHOUT_PAPER:
        return ""
    if record.departures is None:
        return f"{UNDER}settings not compared with the paper's (an older run)"
    if not record.departures:
        return f"{UNDER}preset={record.preset}" if record.preset.startswith(PAPER) else PUBLISHED
    own = record.hyper_parameters
    named = [f"{name} {_word(own.get(name))}, not {_word(value)}" for name, value in record.departures.items()]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    told = "; ".join(named[:SHOWN]) + more
    if record.preset.startswith(PAPER):
        return f"{UNDER}{PRESET}={record.preset} but for {told}"
    return f"{UNDER}{record.preset} settings, not the paper's: {told}"


def of_rows(rows: pd.DataFrame) -> str:
    """In words what rows of an evaluation or a benchmark ran under; nothing where none has a paper."""
    if "hyper_parameters" not in rows:
        return ""
    asked = rows[["method", "hyper_parameters"]].drop_duplicates()
    judged = [(method, json.loads(text or "{}")) for method, text in asked.itertuples(index=False)]
    known = [options for method, options in judged if method not in WITHOUT_PAPER or _parts_named(options)]
    if not known:
        return ""
    theirs = [PAPER in str(options.get(PRESET, "")) or PAPER in _parts_named(options) for options in known]
    if all(theirs):
        return PUBLISHED
    return f"{UNDER}kvlab's default settings{' in part' if any(theirs) else ''}, not preset=paper"


def in_origin(origin: str) -> str:
    """The words of `of_record` or `of_rows` in a line of origin; nothing where there are none."""
    parts = (part for line in NEXT_RUN.split(origin) for part in line.split(" · "))
    return next((part for part in parts if part.startswith(UNDER)), "")


def _parts_named(options: Mapping[str, JsonValue]) -> list[JsonValue]:
    """The presets of a composition's parts."""
    return [value for name, value in options.items() if name.endswith(f"_{PRESET}")]


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
