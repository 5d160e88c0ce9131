"""A method as a policy skeleton in an engine's words: which hook does what, and what has no counterpart."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.serving.levels import ATTENTION, HIDDEN, LEVELS, QUERIES, Servability

_DATA = tomllib.loads(Path(__file__).with_name("engines.toml").read_text(encoding="utf-8"))
ENGINES = tuple(name for name in _DATA if name != "lacks")
NOTE = (
    "A skeleton: data and the hook for each part. It does not run, and nothing here was checked inside the engine.",
    "Numbers are kvlab's; hooks are those that the engine documents (see source).",
)


def skeleton(row: Servability, engine: str, parts: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """TOML with comments for a method whose servability was observed; `parts` are its score, allocate, select, settle.

    Raises UserError for an engine that is not known.
    """
    if engine not in ENGINES:
        raise UserError(f"There is no export for {engine!r}: use {', '.join(ENGINES)}.")
    known = _DATA[engine]
    blocks = [
        "\n".join(f"# {line}" for line in (f"{row.method} for {known['title']}, from kvlab serve-check", *NOTE)),
        _table(
            "method", {"name": row.method, "level": row.level, "level_needs": LEVELS[row.level], "why": row.held.why}
        ),
        _table("settings", dict(settings)),
        _table("engine", {name: known[name] for name in ("title", "source", "granularity", "requirements")}),
        *_hooks(row, known["hooks"], parts),
        _missing(row, known),
    ]
    return "\n\n".join(blocks) + "\n"


def _hooks(row: Servability, hooks: Mapping[str, str], parts: Mapping[str, str]) -> list[str]:
    """What each hook does, in the order of a request."""
    decides = f"{parts['allocate']} splits the budget, {parts['select']} chooses, {parts['settle']} settles"
    found = []
    if row.second_pass and "prompt" in hooks:
        found.append(_hook("second_pass", hooks["prompt"], "read the prompt again before the decision"))
    if "prompt" in hooks:
        found.append(_hook("prompt", hooks["prompt"], f"{parts['score']} scores the prompt's slots; {decides}"))
    if row.decodes and "after_step" in hooks:
        found.append(_hook("decode", hooks["after_step"], f"{parts['score']} updates its scores; {decides}"))
    if row.level == 4 and "attention" in hooks:
        found.append(_hook("attention", hooks["attention"], "add each slot's log mass to its logits"))
    if row.store != "native" and "store" in hooks:
        found.append(_hook("store", hooks["store"], f"hold slots as {row.store}"))
    return found


def _hook(name: str, hook: str, does: str) -> str:
    return _table(f"hooks.{name}", {"hook": hook, "does": does})


def missing(row: Servability, engine: str) -> list[str]:
    """What the method needs and the engine has no hook for, as clauses."""
    known = _DATA[engine]
    needs = {
        1: row.held.logical,
        2: row.held.by_layer,
        3: row.held.by_head,
        4: row.held.log_mass or row.held.merged_keys or row.held.state,
    }
    lacks = [words for level, words in _DATA["lacks"].items() if needs[int(level)] and int(level) > known["holds"]]
    if row.held.apart:
        lacks.append("different tokens in the heads of a layer: pages hold all heads, so copy, or use page=16")
    reads = {*row.reads_prompt, *row.reads_decode}
    if reads & {ATTENTION, QUERIES}:
        lacks.append(
            "attention weights and queries: fused kernels do not return them; compute them for the scored rows"
        )
    if HIDDEN in reads:
        lacks.append("hidden states of the model: no hook passes them on")
    if row.second_pass:
        lacks.append("a second pass over the prompt before the request goes on")
    if row.decodes and "after_step" not in known["hooks"]:
        lacks.append("a decision after each decode step")
    if row.decodes and known["holds"] == 0:
        lacks.append("freeing pages of a running request")
    if row.held.new_values:
        lacks.append("new values of kept slots: they must be written into the pages")
    return lacks


def _missing(row: Servability, known: Mapping[str, Any]) -> str:
    engine = next(name for name in ENGINES if _DATA[name] is known)
    lacks = missing(row, engine)
    lines = ["[missing]", "# What kvlab cannot map to this engine; empty: everything has a hook.", "parts = ["]
    return "\n".join([*lines, *(f"  {json.dumps(words)}," for words in lacks), "]"])


def _table(name: str, values: Mapping[str, Any]) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    return "\n".join([f"[{name}]", *lines])
