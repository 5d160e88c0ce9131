"""The bin: what was deleted lies in `.bin/` of the folder of runs until it is brought back or the bin is emptied."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.library.entries import paths_of
from kvlab.library.outcomes import folder_bytes
from kvlab.server.users import acting, is_owner, require_owner
from kvlab.trace.user_labels import Kind, owner_of

FOLDER, FILE = ".bin", "deleted.json"


class Deleted(BaseModel):
    """One thing in the bin."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=r"^[0-9A-Za-z-]+$", description="its folder in the bin")
    kind: Kind
    names: tuple[str, ...]
    title: str
    deleted: str = Field(description="ISO 8601, UTC")
    bytes: int = Field(ge=0)
    owner: str = Field("", description="whose it is, or who deleted it")
    paths: tuple[str, ...] = Field(description="where it lay, relative to the folder of runs")


def delete(root: Path, kind: Kind, names: Sequence[str], title: str = "") -> Deleted:
    """Move a kept thing (the comparisons of a batch together) into the bin.

    What belongs where is written first, so that a kill half way loses nothing: `bring_back` finds both halves.

    Raises:
        UserError: there is none of this name, it still runs, or the folder cannot be written to.
    """
    root = Path(root)
    owners = {owner_of(root, name, kind) for name in names}
    for owner in owners:
        require_owner(owner, "delete this")
    paths = paths_of(root, kind, names)
    moment = datetime.now(UTC)
    key = f"{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    size = sum(folder_bytes(root / path) if (root / path).is_dir() else (root / path).stat().st_size for path in paths)
    deleted = Deleted(
        key=key, kind=kind, names=tuple(names), title=title or names[0], deleted=moment.isoformat(timespec="seconds"),
        bytes=size, owner=owners.pop() if len(owners) == 1 else acting().name, paths=tuple(map(str, paths)),
    )  # fmt: skip
    try:
        replace_text(root / FOLDER / key / FILE, deleted.model_dump_json(indent=1))
        for path in paths:
            _move(root / path, root / FOLDER / key / path)
    except OSError as error:
        raise UserError(f"{root} cannot be changed ({error.strerror or error}): is it read-only?") from error
    return deleted


def in_bin(root: Path) -> list[Deleted]:
    """What lies in the bin of the person who acts, the last deleted first; what somebody damaged there is left out."""
    found = []
    for file in (Path(root) / FOLDER).glob(f"*/{FILE}"):
        try:
            one = Deleted.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            continue
        if one.key == file.parent.name and is_owner(one.owner):
            found.append(one)
    return sorted(found, key=lambda one: (one.deleted, one.key), reverse=True)


def bring_back(root: Path, key: str) -> Deleted:
    """Move it back to where it lay.

    Raises:
        UserError: it is not in the bin, or something of its name was made since.
    """
    root, deleted = Path(root), find(root, key)
    there = [path for path in deleted.paths if _lies_in_bin(root, key, path) and (root / path).exists()]
    if there:
        raise UserError(f"{there[0]} was made again since {deleted.title[:60]} was deleted: move that away first.")
    try:
        for path in deleted.paths:
            if _lies_in_bin(root, key, path):
                _move(root / FOLDER / key / path, root / path)
        shutil.rmtree(root / FOLDER / key)
    except OSError as error:
        raise UserError(f"{root} cannot be changed ({error.strerror or error}): is it read-only?") from error
    return deleted


def empty(root: Path, keys: Sequence[str] | None = None) -> int:
    """Remove these things, or all, from the bin for good; returns the bytes that were freed."""
    chosen = [one for one in in_bin(root) if keys is None or one.key in keys]
    for one in chosen:
        shutil.rmtree(Path(root) / FOLDER / one.key, ignore_errors=True)
    return sum(one.bytes for one in chosen)


def find(root: Path, key: str) -> Deleted:
    """What lies in the bin under this key; raises UserError where nothing does."""
    found = next((one for one in in_bin(root) if one.key == key), None)
    if found is None:
        raise UserError(f"There is no {key[:60]!r} in the bin: `kvlab runs bin` names what is there.")
    return found


def _lies_in_bin(root: Path, key: str, path: str) -> bool:
    return (root / FOLDER / key / path).exists()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(source, target)
