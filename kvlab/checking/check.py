"""Holding a method against a property: it holds, it fails in this case, or it does not apply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvlab.checking.properties import Property
from kvlab.common.errors import UserError
from kvlab.methods import Method, make_method
from kvlab.methods.composition.composed import compose
from kvlab.methods.composition.register import REGISTERED
from kvlab.plugins.load import load_plugins
from kvlab.plugins.requested import name_files


@dataclass(frozen=True)
class Result:
    """A verdict, and with it how many cases were tried, the smallest that failed, or why it does not apply."""

    property: str
    verdict: Literal["holds", "fails", "does not apply"]
    detail: str


def check(method: Method, held: Property) -> Result:
    """Hold a method against one property; whatever the method raises is a failure in that case."""
    if reason := held.applies(method):
        return Result(held.name, "does not apply", reason)
    for case in held.where:
        try:
            wrong = held.broken(method, case)
        except Exception as error:
            told = (str(error).strip().splitlines() or ["no message"])[0]
            wrong = f"{type(error).__name__}: {told}"
        if wrong:
            return Result(held.name, "fails", f"{case}: {wrong}")
    return Result(held.name, "holds", f"in {len(held.where)} case{'s' * (len(held.where) > 1)}")


def from_file(path: Path) -> dict[str, Method]:
    """Load a plug-in and return what of it can be checked, as one would write it after --methods.

    Its methods with their defaults, and its parts in a composition with the plainest others. Raises UserError where
    the file cannot be loaded, or registers neither.
    """
    name_files([path])
    place = str(path.expanduser().absolute())
    plugin = next(plugin for plugin in load_plugins() if plugin.origin.place == place)
    if plugin.failure:
        raise UserError(plugin.failure)
    brought = plugin.brought
    found = {name: make_method(name) for name in brought.get("method", [])}
    for part, registry in REGISTERED.items():
        for name in brought.get(registry.kind, []):
            found[f"compose:{part}={name}"] = compose(**{part: name})
    if not found:
        raise UserError(
            f"{path} registers no method and no part of one to check; it registers {', '.join(brought) or 'nothing'}."
        )
    return found
