"""A comparison, an evaluation, a benchmark or a story as one file that another kvlab takes in, checked on the way.

The file is a ZIP: `kvlab.json` says what it holds, with the size and SHA-256 of every file; the files lie under the
paths they have in a folder of runs. Nothing in it is run, and no path in it leaves the folder.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import full_disk_sentence, replace_file
from kvlab.common.errors import UserError
from kvlab.library.entries import FOLDERS as RESULTS
from kvlab.library.entries import paths_of
from kvlab.library.recycle_bin import FOLDER as BIN
from kvlab.server.users import Role, require
from kvlab.trace import catalogue, restore_results, stories
from kvlab.trace import user_labels as labels_of
from kvlab.trace.record import FILE as RECORD
from kvlab.trace.record import read_record, write_record

MANIFEST, FORMAT, SUFFIX = "kvlab.json", 1, ".kvlab.zip"
LARGEST_MANIFEST, MOST_FILES = 32 << 20, 200_000
BLOCK = 1 << 20
PACKED = (".parquet", ".safetensors")  # do not become much smaller, and would take long
# Folders of a folder of runs that a file may be put into, beside those of runs.
SHARED = (labels_of.FOLDER, restore_results.FOLDER, stories.FOLDER, *RESULTS.values())

What = Literal["comparison", "evaluation", "benchmark", "story"]


class Item(BaseModel):
    """One file of a parcel."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a parcel holds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = Field(ge=1)
    kind: What
    names: tuple[str, ...]
    title: str = ""
    made: str = ""
    kvlab: str = ""
    files: dict[str, Item] = Field(max_length=MOST_FILES)

    @property
    def bytes(self) -> int:
        """All files together, unpacked."""
        return sum(item.size for item in self.files.values())


def pack(root: Path, kind: What, names: Sequence[str], title: str, target: Path) -> Manifest:
    """Write a parcel of this thing to `target`, whole or not at all; of a story, with the comparisons it shows.

    Raises:
        UserError: there is none of this name, it still runs, or the disk is full.
    """
    root = Path(root)
    files = {str(PurePosixPath(file.relative_to(root))): file for file in _files(root, kind, names)}
    items = {name: Item(size=file.stat().st_size, sha256=_hash(file)) for name, file in sorted(files.items())}
    manifest = Manifest(
        format=FORMAT, kind=kind, names=tuple(names), title=title, files=items, kvlab=version("kvlab"),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as parcel:
            parcel.writestr(MANIFEST, manifest.model_dump_json(indent=1))
            for name in items:
                packed = zipfile.ZIP_STORED if name.endswith(PACKED) else zipfile.ZIP_DEFLATED
                parcel.write(files[name], name, compress_type=packed)

    replace_file(target, write)
    return manifest


def look_into(parcel: Path | IO[bytes]) -> Manifest:
    """What a parcel says it holds; raises UserError where it is none."""
    with _opened(parcel) as archive:
        return _manifest(archive)


def unpack(root: Path, parcel: Path | IO[bytes], most_bytes: int | None = None) -> Manifest:
    """Take a parcel into a folder of runs: every file is checked before the first appears there.

    Raises:
        UserError: it is no parcel, is damaged or was changed, holds more than `most_bytes`, or something of its names
            is there already. The folder is as it was before.
    """
    root, person = Path(root), require(Role.RUN, "take in what others exported")
    with _opened(parcel) as archive:
        manifest = _manifest(archive)
        _check_room(root, manifest, most_bytes)
        _check_free(root, manifest)
        unpacked = root / BIN / f".taken-{secrets.token_hex(6)}"
        try:
            with full_disk_sentence(root):
                _extract(archive, manifest, unpacked)
            _check_records(unpacked, manifest)
            for top in _units(manifest):
                (root / top).parent.mkdir(parents=True, exist_ok=True)
                os.rename(unpacked / top, root / top)
        except OSError as error:
            raise UserError(f"{root} cannot be written to ({error.strerror or error}): is it read-only?") from error
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    if person.name:
        for kind, name in _labelled(manifest):
            labels_of.set_owner(root, name, kind, person.name)
    for run_id in _run_ids(manifest):
        record = read_record(root / run_id)
        if person.name:  # on a shared server it is theirs who brought it, whoever made it elsewhere
            record = record.model_copy(update={"owner": person.name, "private": False})
            write_record(root / run_id, record)
        catalogue.upsert(root, record)
    return manifest


def shown_in(root: Path, story: stories.Story) -> list[str]:
    """The comparisons of this folder that a story's views name, each once."""
    owner = {run.run_id: run.comparison_id for run in catalogue.list_runs(root)}
    asked = [view.query.get(key, "") for view in story.views for key in ("comparison", "run", "a", "b")]
    found = [owner.get(name, name) for names in asked for name in names.split("/")]
    return [name for name in dict.fromkeys(found) if name in set(owner.values())]


def _files(root: Path, kind: What, names: Sequence[str]) -> Iterator[Path]:
    paths: list[Path] = []
    if kind == "story":
        for name in names:
            file = stories.story_path(root, name)
            if not file.exists() or not labels_of.may_view(root, file.stem, "story"):
                raise UserError(f"There is no story {name[:80]!r} in {root}.")
            paths.append(file.relative_to(root))
            paths += paths_of(root, "comparison", shown_in(root, stories.load_story(root, name)))
    else:
        paths = paths_of(root, kind, names)
    for path in dict.fromkeys(paths):
        found = [root / path] if (root / path).is_file() else sorted((root / path).rglob("*"))
        yield from (file for file in found if file.is_file() and not file.is_symlink() and not _is_hidden(file, root))


def _is_hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


@contextmanager
def _opened(parcel: Path | IO[bytes]) -> Iterator[zipfile.ZipFile]:
    try:
        if isinstance(parcel, Path) and parcel.exists() and not parcel.is_file():
            raise UserError(f"{parcel} is no file: name one that `kvlab export` made.")
        with zipfile.ZipFile(parcel) as archive:
            yield archive
    except FileNotFoundError as error:
        raise UserError(f"There is no file {parcel}: name one that `kvlab export` made.") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise UserError(
            "This is no file of kvlab's, or it is cut off or damaged: take one that `kvlab export` made, and copy it "
            "again."
        ) from error


def _manifest(archive: zipfile.ZipFile) -> Manifest:
    try:
        entry = archive.getinfo(MANIFEST)
        if entry.file_size > LARGEST_MANIFEST:
            raise KeyError(MANIFEST)
        manifest = Manifest.model_validate_json(archive.read(entry))
    except (KeyError, ValidationError) as error:
        raise UserError("This is no file of kvlab's: take one that `kvlab export` made.") from error
    if manifest.format > FORMAT:
        raise UserError(f"This file was made by a newer kvlab ({manifest.kvlab[:20]}): update this one.")
    if set(archive.namelist()) - {MANIFEST} != set(manifest.files):
        raise UserError("What is in this file is not what it says is in it: have it exported again.")
    for name in manifest.files:
        _check_path(name)
    return manifest


def _check_path(name: str) -> None:
    parts = PurePosixPath(name).parts
    safe = len(parts) > 1 and "\\" not in name and ":" not in name and not any(ord(sign) < 32 for sign in name)
    if not safe or name.startswith("/") or any(part.startswith(".") for part in parts):
        raise UserError(f"This file holds the path {name[:60]!r}, which no export has: it is not taken in.")


def _check_room(root: Path, manifest: Manifest, most_bytes: int | None) -> None:
    there = root
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    most = free if most_bytes is None else min(free, most_bytes)
    if manifest.bytes > most:
        raise UserError(
            f"It takes {manifest.bytes / 2**20:,.0f} MiB unpacked, and {most / 2**20:,.0f} MiB may be used here."
        )


def _check_free(root: Path, manifest: Manifest) -> None:
    taken = [unit for unit in _units(manifest) if (root / unit).exists()]
    if taken:
        raise UserError(
            f"{taken[0]} is in this folder already: nothing was taken in. Delete it first, or take another folder."
        )


def _units(manifest: Manifest) -> list[str]:
    """What is moved as a whole: the folder of a run or of results, or a single file of a shared folder."""
    units = []
    for name in manifest.files:
        parts = PurePosixPath(name).parts
        whole = parts[0] not in SHARED
        folder = parts[0] in (RESULTS["evaluation"], restore_results.FOLDER) and len(parts) > 2
        units.append(parts[0] if whole else "/".join(parts[:2]) if folder else name)
    return list(dict.fromkeys(units))


def _run_ids(manifest: Manifest) -> list[str]:
    return [unit for unit in _units(manifest) if "/" not in unit]


def _extract(archive: zipfile.ZipFile, manifest: Manifest, target: Path) -> None:
    for name, item in manifest.files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        found, left = hashlib.sha256(), item.size
        with archive.open(name) as source, path.open("wb") as copy:
            while block := source.read(BLOCK):
                left -= len(block)
                if left < 0:  # more than it said: a bomb is not unpacked to its end
                    break
                found.update(block)
                copy.write(block)
        if left or found.hexdigest() != item.sha256:
            raise UserError(f"{name} in this file is damaged or was changed: have it exported again.")


def _labelled(manifest: Manifest) -> list[tuple[labels_of.Kind, str]]:
    """What in a parcel is somebody's by its labels."""
    kinds = {folder: kind for kind, folder in (*RESULTS.items(), ("story", stories.FOLDER))}
    parts = (PurePosixPath(unit).parts for unit in _units(manifest))
    found = ((kinds[where[0]], where[1]) for where in parts if where[0] in kinds)
    return [(kind, name if kind == "evaluation" else PurePosixPath(name).stem) for kind, name in found]  # type: ignore[misc]


def _check_records(folder: Path, manifest: Manifest) -> None:
    """Every folder that is no shared one must be a run's whose record holds, and labels say of what is in there."""
    theirs = {name for _, name in _labelled(manifest)}
    theirs |= {read_record(folder / run_id).comparison_id for run_id in _run_ids(manifest)}
    for name in manifest.files:
        if name.startswith(f"{labels_of.FOLDER}/") and PurePosixPath(name).stem not in theirs:
            raise UserError(f"{name[:60]!r} in this file says something of what is not in it: it is not taken in.")
    for run_id in _run_ids(manifest):
        if not (folder / run_id / RECORD).is_file():
            raise UserError(f"{run_id[:60]!r} in this file is no run: it is not taken in.")
        read_record(folder / run_id)


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
