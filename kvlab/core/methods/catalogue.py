"""List the registered methods as data."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from kvlab.core.contract.method import registered


@dataclass(frozen=True)
class MethodDescription:
    """One method as forms, tables and the dashboard show it."""

    name: str
    family: str
    title: str
    paper: str
    summary: str
    merges: bool
    compresses_while_decoding: bool
    needs_budget: bool
    variants: list[str]
    choices: dict[str, str]
    parameters: dict[str, JsonValue]
    presets: dict[str, JsonValue]
    reasons: dict[str, str]
    holds: dict[str, JsonValue]
    stores: dict[str, JsonValue]
    window: int  # newest tokens of the prompt that always stay
    origin: str  # plug-in with version and hash; empty: kvlab's own


def list_methods() -> list[MethodDescription]:
    """All registered methods in display order."""
    return [MethodDescription(**method.describe()) for method in registered().values()]  # type: ignore[arg-type]  # describe() has this class's fields
