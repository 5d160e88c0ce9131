"""Export and import a comparison, evaluation, benchmark or story as one verified file.

The file is a ZIP: `kvlab.json` lists every file with size and SHA-256; files have the paths they have in a runs folder.
Nothing in it is executed, and no path in it leaves the folder.
"""

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
from kvlab.common.formatting import format_bytes
from kvlab.common.lab import acting
from kvlab.core.errors import UserError
from kvlab.library.items import FOLDERS as RESULTS
from kvlab.library.items import item_paths
from kvlab.library.recycle_bin import FOLDER as BIN
from kvlab.trace import catalogue, restore_results, stories
from kvlab.trace import user_labels as labels_of
from kvlab.trace.record import FILE as RECORD
from kvlab.trace.record import read_record, write_record

MANIFEST = "kvlab.json"
FORMAT = 1
SUFFIX = ".kvlab.zip"
LARGEST_MANIFEST = 32 << 20
MOST_FILES = 200_000
BLOCK = 1 << 20
PACKED = (".parquet", ".safetensors")  # already compressed
# Allowed folders besides those of runs.
SHARED = (labels_of.FOLDER, restore_results.FOLDER, stories.FOLDER, *RESULTS.values())

What = Literal["comparison", "evaluation", "benchmark", "story"]


class ArchivedFile(BaseModel):
    """One file of an archive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Contents of an archive."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = Field(ge=1)
    kind: What
    names: tuple[str, ...]
    title: str = ""
    made: str = ""
    kvlab: str = ""
    files: dict[str, ArchivedFile] = Field(max_length=MOST_FILES)

    @property
    def bytes(self) -> int:
        """Total unpacked size."""
        return sum(item.size for item in self.files.values())


def pack(root: Path, kind: What, names: Sequence[str], title: str, target: Path) -> Manifest:
    """Atomically write an archive to `target`; that of a story includes the comparisons it shows.

    Raises:
        UserError: there is none of this name, it is still running, or the disk is full.
    """
    root = Path(root)
    paths: list[Path] = [] if kind == "story" else item_paths(root, kind, names)
    for name in names if kind == "story" else ():
        story = stories.story_path(root, name)
        if not story.exists() or not labels_of.may_view(root, story.stem, "story"):
            raise UserError(f"There is no story {name[:80]!r} in {root}.")
        paths.append(story.relative_to(root))
        # The comparisons of this folder that the story's views use.
        owner = {run.run_id: run.comparison_id for run in catalogue.list_runs(root)}
        views = stories.load_story(root, name).views
        asked = [view.query.get(key, "") for view in views for key in ("comparison", "run", "a", "b")]
        used = dict.fromkeys(owner.get(one, one) for several in asked for one in several.split("/"))
        paths += item_paths(root, "comparison", [one for one in used if one in set(owner.values())])
    files = {}  # by their paths in the archive, without hidden ones and links
    for path in dict.fromkeys(paths):
        found = [root / path] if (root / path).is_file() else sorted((root / path).rglob("*"))
        for file in found:
            inside = file.relative_to(root)
            is_hidden = any(part.startswith(".") for part in inside.parts)
            if not is_hidden and file.is_file() and not file.is_symlink():
                files[str(PurePosixPath(inside))] = file
    items = {}
    for name, file in sorted(files.items()):
        with file.open("rb") as content:
            checksum = hashlib.file_digest(content, "sha256").hexdigest()
        items[name] = ArchivedFile(size=file.stat().st_size, sha256=checksum)
    manifest = Manifest(
        format=FORMAT,
        kind=kind,
        names=tuple(names),
        title=title,
        files=items,
        kvlab=version("kvlab"),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as archive_file:
            archive_file.writestr(MANIFEST, manifest.model_dump_json(indent=1))
            for name in items:
                packed = zipfile.ZIP_STORED if name.endswith(PACKED) else zipfile.ZIP_DEFLATED
                archive_file.write(files[name], name, compress_type=packed)

    replace_file(target, write)
    return manifest


def unpack(root: Path, archive_file: Path | IO[bytes], most_bytes: int | None = None) -> Manifest:
    """Import an archive into a runs folder; every file is verified before the first one appears there.

    Raises:
        UserError: it is invalid, damaged, modified or too large, or a name already exists. The folder is unchanged.
    """
    root = Path(root)
    person = acting()
    with _opened(archive_file) as (archive, manifest):
        there = root
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        most = free if most_bytes is None else min(free, most_bytes)
        if manifest.bytes > most:
            raise UserError(
                f"It takes {format_bytes(manifest.bytes)} unpacked, and {format_bytes(most)} may be used here."
            )
        taken = [unit for unit in _units(manifest) if (root / unit).exists()]
        if taken:
            why = "is already in this folder: nothing was imported. Delete it first, or use another folder."
            raise UserError(f"{taken[0]} {why}")
        unpacked = root / BIN / f".taken-{secrets.token_hex(6)}"
        try:
            with full_disk_sentence(root):
                _extract(archive, manifest, unpacked)
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
    for run_id in (unit for unit in _units(manifest) if "/" not in unit):
        record = read_record(root / run_id)
        if person.name:  # on a shared server the importing user owns it
            record = record.model_copy(update={"owner": person.name, "private": False})
            write_record(root / run_id, record)
        catalogue.upsert(root, record)
    return manifest


@contextmanager
def _opened(archive_file: Path | IO[bytes]) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """An archive with its manifest, whose paths are safe and which lists every file.

    Raises UserError if it is no such archive.
    """
    try:
        if isinstance(archive_file, Path) and archive_file.exists() and not archive_file.is_file():
            raise UserError(f"{archive_file} is not a file: give one created by `kvlab runs export`.")
        with zipfile.ZipFile(archive_file) as archive:
            try:
                entry = archive.getinfo(MANIFEST)
                if entry.file_size > LARGEST_MANIFEST:
                    raise KeyError(MANIFEST)
                manifest = Manifest.model_validate_json(archive.read(entry))
            except (KeyError, ValidationError) as error:
                raise UserError("This is not a kvlab archive: give a file created by `kvlab runs export`.") from error
            if manifest.format > FORMAT:
                raise UserError(f"This file was made by a newer kvlab ({manifest.kvlab[:20]}): update this one.")
            if set(archive.namelist()) - {MANIFEST} != set(manifest.files):
                raise UserError("The archive does not match its list of files: export it again.")
            for name in manifest.files:
                parts = PurePosixPath(name).parts
                is_plain = not set(name) & set("\\:") and not any(ord(char) < 32 for char in name)
                is_hidden = any(part.startswith(".") for part in parts)
                if len(parts) < 2 or not is_plain or is_hidden or name.startswith("/"):
                    raise UserError(f"The archive has the invalid path {name[:60]!r} and was not imported.")
            yield archive, manifest
    except FileNotFoundError as error:
        raise UserError(f"There is no file {archive_file}: give one created by `kvlab runs export`.") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        why = "This is not a kvlab archive, or it is damaged: copy the file created by `kvlab runs export` again."
        raise UserError(why) from error


def _units(manifest: Manifest) -> list[str]:
    """Paths moved as a whole: the folder of a run or of results, or a single file of a shared folder."""
    units = []
    for name in manifest.files:
        parts = PurePosixPath(name).parts
        whole = parts[0] not in SHARED
        folder = parts[0] in (RESULTS["evaluation"], restore_results.FOLDER) and len(parts) > 2
        units.append(parts[0] if whole else "/".join(parts[:2]) if folder else name)
    return list(dict.fromkeys(units))


def _extract(archive: zipfile.ZipFile, manifest: Manifest, target: Path) -> None:
    """Unpack into `target` and verify: files are as listed, unshared folders valid runs, labels of imported results."""
    for name, item in manifest.files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        found = hashlib.sha256()
        left = item.size
        with archive.open(name) as source, path.open("wb") as copy:
            while block := source.read(BLOCK):
                left -= len(block)
                if left < 0:  # larger than listed: stop, it may be a ZIP bomb
                    break
                found.update(block)
                copy.write(block)
        if left or found.hexdigest() != item.sha256:
            raise UserError(f"{name} in the archive is damaged or modified: export it again.")
    theirs = {name for _, name in _labelled(manifest)}
    run_ids = [unit for unit in _units(manifest) if "/" not in unit]
    theirs |= {read_record(target / run_id).comparison_id for run_id in run_ids}
    for name in manifest.files:
        if name.startswith(f"{labels_of.FOLDER}/") and PurePosixPath(name).stem not in theirs:
            raise UserError(f"{name[:60]!r} in the archive belongs to no result in it: it was not imported.")
    for run_id in run_ids:
        if not (target / run_id / RECORD).is_file():
            raise UserError(f"{run_id[:60]!r} in the archive is not a run: it was not imported.")
        read_record(target / run_id)


def _labelled(manifest: Manifest) -> list[tuple[labels_of.Kind, str]]:
    """Results in an archive whose owner is stored in labels."""
    kinds = {folder: kind for kind, folder in (*RESULTS.items(), ("story", stories.FOLDER))}
    parts = (PurePosixPath(unit).parts for unit in _units(manifest))
    found = ((kinds[where[0]], where[1]) for where in parts if where[0] in kinds)
    return [(kind, name if kind == "evaluation" else PurePosixPath(name).stem) for kind, name in found]
