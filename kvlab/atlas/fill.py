"""Which commands fill the atlas: what every exhibit asks for where nothing was measured yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvlab.atlas.exhibit import Choice, Exhibit, Needs
from kvlab.atlas.registry import EXHIBITS, find
from kvlab.common.errors import UserError
from kvlab.results.sources import Sources

NOWHERE = Path("nowhere")


def command_of(exhibit: Exhibit, root: Path) -> str:
    """What makes the exhibit's data, into the folder of runs `root`; empty for a calculator."""
    found = exhibit.drawing(Empty(root), Choice(), "light")
    return found.command if isinstance(found, Needs) else ""


class Empty(Sources):
    """A folder of runs in which nothing was measured yet."""

    @property
    def results(self) -> Path:
        return NOWHERE


def commands_of(root: Path, keys: Sequence[str] = ()) -> list[str]:
    """The commands of the named exhibits, or of all; each once.

    Raises:
        UserError: an exhibit is not named `paper/slug`, or there is none of that name.
    """
    if bad := next((key for key in keys if key.count("/") != 1), None):
        raise UserError(f"{bad!r} names no exhibit: write its paper and number, such as keepkv/fig-3.")
    chosen = [find(*key.split("/")) for key in keys] or list(EXHIBITS)
    found = (command_of(exhibit, root) for exhibit in chosen)
    return list(dict.fromkeys(command for command in found if command))
