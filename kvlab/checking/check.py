"""Check a method against a property: it holds, it fails in a case, or it does not apply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvlab.checking.properties import Property
from kvlab.common.errors import UserError
from kvlab.methods import Method, make_method
from kvlab.methods.composition.composed import compose
from kvlab.methods.composition.register import REGISTERED
from kvlab.plugins.load import load_plugins, name_files


@dataclass(frozen=True)
class Result:
    """A verdict with the number of cases, the smallest failing one, or why the property does not apply."""

    property: str
    verdict: Literal["holds", "fails", "does not apply"]
    detail: str


def check(method: Method, held: Property) -> Result:
    """Check a method against one property; an exception in a case is a failure."""
    if reason := held.applies(method):
        return Result(held.name, "does not apply", reason)
    for case in held.where:
        try:
            wrong = held.broken(method, case)
        except Exception as error:
            message = (str(error).strip().splitlines() or ["no message"])[0]
            wrong = f"{type(error).__name__}: {message}"
        if wrong:
            return Result(held.name, "fails", f"{case}: {wrong}")
    return Result(held.name, "holds", f"in {len(held.where)} case{'s' * (len(held.where) > 1)}")


def from_file(path: Path) -> dict[str, Method]:
    """Load a plug-in and return what can be checked, by its name for --methods.

    These are its methods with their defaults, and its parts composed with default other parts. Raises UserError if the
    file cannot be loaded or registers neither.
    """
    name_files([path])
    place = str(path.expanduser().absolute())
    plugin = next(plugin for plugin in load_plugins() if plugin.origin.place == place)
    if plugin.failure:
        raise UserError(plugin.failure)
    brought = plugin.brought
    methods = {name: make_method(name) for name in brought.get("method", [])}
    for part, registry in REGISTERED.items():
        for name in brought.get(registry.kind, []):
            methods[f"compose:{part}={name}"] = compose(**{part: name})
    if not methods:
        raise UserError(
            f"{path} registers no method and no part of one to check; it registers {', '.join(brought) or 'nothing'}."
        )
    return methods
