"""Paths of an evaluation's prompt files, so that a prompt can be run again from its row, which holds only a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import RootModel, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.evaluate.request import FileChoice

FILE = "files.json"
_Files = RootModel[dict[str, FileChoice]]


def remember_files(folder: Path, files: Sequence[FileChoice]) -> None:
    """Note the files' places in the folder of results; of one name the last counts."""
    if files:
        known = known_files(folder) | {file.path.name: file.with_absolute_paths() for file in files}
        replace_text(folder / FILE, _Files(known).model_dump_json())


def known_files(folder: Path) -> dict[str, FileChoice]:
    """The noted files that still exist, by name."""
    try:
        found = _Files.model_validate_json((folder / FILE).read_text(encoding="utf-8")).root
    except (OSError, ValidationError):
        return {}
    return {name: file for name, file in found.items() if file.path.exists()}
