"""Describe the settings under which a claim was judged: the paper's (`preset=paper`) or others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pandas as pd
from pydantic import JsonValue

from kvlab.trace.schema import RunRecord

# Methods without published settings.
WITHOUT_PAPER = ("full", "packed", "window", "compose", "exactmerge", "exactmerge2")
PRESET, PAPER = "preset", "paper"
UNDER = "under "  # prefix by which `settings_in_origin` finds the description
PUBLISHED = f"{UNDER}preset=paper"
NEXT_RUN = re.compile("; (?:evictions|run) ")  # start of another run in an origin line
SHOWN = 4  # settings named; the rest is counted


def as_published(method: str, options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The options on top of the paper's preset, if the method has a paper and no other preset is given."""
    return {**({} if method in WITHOUT_PAPER else {PRESET: PAPER}), **options}


def with_paper_preset(method: str) -> str:
    """A method as a command-line argument with its paper's preset: `keepkv:preset=paper:rule=votes`."""
    name, *options = method.split(":")
    if name in WITHOUT_PAPER or any(option.startswith(f"{PRESET}=") for option in options):
        return method
    return ":".join([name, f"{PRESET}={PAPER}", *options])


def record_settings(record: RunRecord) -> str:
    """Settings of a run as text; "" for a method without a paper."""
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


def row_settings(rows: pd.DataFrame) -> str:
    """Settings of evaluation or benchmark rows as text; "" if no method has a paper."""
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


def settings_in_origin(origin: str) -> str:
    """The settings description in an origin line; "" if there is none."""
    parts = (part for line in NEXT_RUN.split(origin) for part in line.split(" · "))
    return next((part for part in parts if part.startswith(UNDER)), "")


def _parts_named(options: Mapping[str, JsonValue]) -> list[JsonValue]:
    """The presets of a composition's parts."""
    return [value for name, value in options.items() if name.endswith(f"_{PRESET}")]


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
