"""Recycle bin: deleted items stay in `.bin/` of the runs folder until restored or the bin is emptied."""

import os
import secrets
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.common.lab import acting, is_owner, require_owner
from kvlab.core.errors import UserError
from kvlab.library.items import folder_bytes, item_paths
from kvlab.trace.user_labels import Kind, owner_of

FOLDER = ".bin"
FILE = "deleted.json"


class Deleted(BaseModel):
    """One item in the bin."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(pattern=r"^[0-9A-Za-z-]+$", description="its folder in the bin")
    kind: Kind
    names: tuple[str, ...]
    title: str
    deleted: str = Field(description="ISO 8601, UTC")
    bytes: int = Field(ge=0)
    owner: str = Field("", description="owner, or the user who deleted it")
    paths: tuple[str, ...] = Field(description="original paths, relative to the runs folder")


def delete(root: Path, kind: Kind, names: Sequence[str], title: str = "") -> Deleted:
    """Move an item (the comparisons of a batch together) into the bin.

    The list of paths is written first, so that an interruption loses nothing: `restore_deleted` restores both parts.

    Raises:
        UserError: there is none of this name, it is still running, or the folder is not writable.
    """
    root = Path(root)
    owners = {owner_of(root, name, kind) for name in names}
    for owner in owners:
        require_owner(owner, "delete this")
    paths = item_paths(root, kind, names)
    moment = datetime.now(UTC)
    key = f"{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    size = sum(folder_bytes(root / path) if (root / path).is_dir() else (root / path).stat().st_size for path in paths)
    deleted = Deleted(
        key=key,
        kind=kind,
        names=tuple(names),
        title=title or names[0],
        deleted=moment.isoformat(timespec="seconds"),
        bytes=size,
        owner=owners.pop() if len(owners) == 1 else acting().name,
        paths=tuple(map(str, paths)),
    )
    try:
        replace_text(root / FOLDER / key / FILE, deleted.model_dump_json(indent=1))
        for path in paths:
            target = root / FOLDER / key / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(root / path, target)
    except OSError as error:
        raise UserError(f"{root} cannot be changed ({error.strerror or error}): is it read-only?") from error
    return deleted


def list_bin(root: Path) -> list[Deleted]:
    """Items in the current user's bin, last deleted first; damaged entries are skipped."""
    found = []
    for file in (Path(root) / FOLDER).glob(f"*/{FILE}"):
        try:
            one = Deleted.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            continue
        if one.key == file.parent.name and is_owner(one.owner):
            found.append(one)
    return sorted(found, key=lambda one: (one.deleted, one.key), reverse=True)


def restore_deleted(root: Path, key: str) -> Deleted:
    """Restore an item.

    Raises:
        UserError: it is not in the bin, or one of its paths exists again.
    """
    deleted = next((one for one in list_bin(root) if one.key == key), None)
    if deleted is None:
        raise UserError(f"There is no {key[:60]!r} in the bin: `kvlab runs bin` lists all.")
    root = Path(root)
    moved = [path for path in deleted.paths if (root / FOLDER / key / path).exists()]
    there = [path for path in moved if (root / path).exists()]
    if there:
        raise UserError(f"{there[0]} was created again since {deleted.title[:60]} was deleted: move it away first.")
    try:
        for path in moved:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            os.rename(root / FOLDER / key / path, root / path)
        shutil.rmtree(root / FOLDER / key)
    except OSError as error:
        raise UserError(f"{root} cannot be changed ({error.strerror or error}): is it read-only?") from error
    return deleted


def empty_bin(root: Path, keys: Sequence[str] | None = None) -> int:
    """Permanently remove these items, or all; returns the bytes freed."""
    chosen = [one for one in list_bin(root) if keys is None or one.key in keys]
    for one in chosen:
        shutil.rmtree(Path(root) / FOLDER / one.key, ignore_errors=True)
    return sum(one.bytes for one in chosen)
