"""User-provided data about results, stored as JSON next to the runs, never in them.

Comparisons have an answer and facts; comparisons, evaluations and benchmarks have name, tags, star, note and archived
flag. Owner and privacy of evaluations, benchmarks, fits and stories are stored here too; those of comparisons are in
their records. One file per result, changed under a lock on the folder, so that concurrent changes are not lost.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import filelock
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kvlab.common.atomic_write import full_disk_sentence, replace_text
from kvlab.common.lab import acting, is_owner, may_see, require_owner
from kvlab.core import UserError, check_text, in_one_sentence
from kvlab.requests.facts import Fact, check_answer, find_facts
from kvlab.trace.catalogue import list_runs
from kvlab.trace.checksums import State, state_of

Kind = Literal["comparison", "evaluation", "benchmark", "fit", "story"]
FOLDER = "labels"
FOLDERS: dict[Kind, str] = {
    "comparison": "", "evaluation": "evaluations", "benchmark": "benchmarks", "fit": "fits", "story": "stories",
}  # fmt: skip
LOCK_SECONDS = 10
LONGEST_NAME = 200
LONGEST_TAG = 40
LONGEST_NOTE = 20_000
MOST_TAGS = 40


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags without duplicates; raises UserError for an invalid tag."""
    unique = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    for tag in unique:
        if len(tag) > LONGEST_TAG or not re.fullmatch(r"[\w.+\-/: ]+", tag):
            raise UserError(
                f"{tag[:LONGEST_TAG]!a} is not a valid tag: use at most {LONGEST_TAG} letters, digits, spaces, dots "
                "and dashes."
            )
    return unique


class Labels(BaseModel):
    """User data of one result; None, "" and () mean unset. Unknown fields are kept for newer versions."""

    model_config = ConfigDict(frozen=True, extra="allow")

    answer: str | None = Field(None, min_length=1)
    facts: tuple[Fact, ...] = ()
    name: str = Field("", max_length=LONGEST_NAME, description="shown in place of the title")
    tags: Annotated[tuple[str, ...], Field(max_length=MOST_TAGS), AfterValidator(check_tags)] = ()
    starred: bool = False
    note: str = Field("", max_length=LONGEST_NOTE, description="Markdown")
    archived: bool = False
    owner: str = Field("", description="owner; that of a comparison is in its record")
    private: bool = Field(False, description="visible only to its owner; likewise")
    changed: str = Field("", description="when it was last changed, ISO 8601")


def load_labels(root: Path, name: str, kind: Kind = "comparison") -> Labels:
    """The labels of a result, empty if there are none; raises UserError if their file is damaged."""
    file = label_path(root, name, kind)
    try:
        return _parse(file, state_of(file))
    except FileNotFoundError:
        return Labels()


def change_labels(root: Path, name: str, kind: Kind = "comparison", /, **changes: Any) -> Labels:
    """Atomically change some labels of a result and return the new ones.

    Raises UserError if a value is invalid, the file is damaged, the disk is full, or another process holds the lock.
    """
    if not acting().owns_all:
        require_owner(owner_of(root, name, kind), "change this")
    with lock_labels(root):
        known = load_labels(root, name, kind)
        return _save(root, name, kind, known, changes)


def change_tags(
    root: Path, name: str, kind: Kind = "comparison", *, add: Sequence[str] = (), remove: Sequence[str] = ()
) -> Labels:
    """Add and remove tags of a result; raises as `change_labels`."""
    if not acting().owns_all:
        require_owner(owner_of(root, name, kind), "change this")
    with lock_labels(root):
        known = load_labels(root, name, kind)
        tags = tuple(tag for tag in (*known.tags, *add) if tag not in remove)
        return _save(root, name, kind, known, {"tags": tags})


def save_answer(root: Path, comparison_id: str, prompt: str, answer: str, facts: Sequence[str | Fact] = ()) -> Path:
    """Atomically write the expected answer and the facts (words or spans of the prompt); returns the file.

    Raises UserError if the answer is empty, the prompt lacks a fact, or the disk is full.
    """
    change_labels(root, comparison_id, answer=check_answer(answer), facts=find_facts(prompt, facts))
    return label_path(root, comparison_id)


def all_labels(root: Path) -> dict[tuple[Kind, str], Labels]:
    """The labels of all results that have some, by kind and id; damaged files are skipped."""
    found: dict[tuple[Kind, str], Labels] = {}
    for kind, folder in FOLDERS.items():
        for file in (Path(root) / FOLDER / folder).glob("*.json"):
            try:
                found[kind, file.stem] = _parse(file, state_of(file))
            except (UserError, OSError):
                continue
    return found


def owner_of(root: Path, name: str, kind: Kind = "comparison") -> str:
    """Owner of a result, or ""; on a shared server nobody there owns those without."""
    if kind != "comparison":
        return load_labels(root, name, kind).owner
    owners = {run.owner for run in list_runs(root) if name in (run.comparison_id, run.run_id)}
    return owners.pop() if len(owners) == 1 else ""


def may_view(root: Path, name: str, kind: Kind) -> bool:
    """Whether the current user may see an evaluation, benchmark, fit or story.

    With damaged labels the owner is unknown, so on a shared server nobody may.
    """
    if acting().owns_all:
        return True
    try:
        labels = load_labels(root, name, kind)
    except UserError:
        return False
    return may_see(labels.owner, labels.private)


def claim_name(root: Path, name: str, kind: Kind, private: bool = False, made: bool = False) -> None:
    """Claim the name of an evaluation, benchmark, fit or story for the current user, unless it has an owner.

    Private names stay private. `made`: results of that name exist; without an owner they stay so, and on a
    shared server nobody may continue them. Raises UserError if the name has another owner, or results without an owner.
    """
    person = acting()
    with lock_labels(root):
        known = load_labels(root, name, kind)
        if (known.owner or made) and not is_owner(known.owner):
            owner = "" if known.private else f" (owner: {known.owner or 'none'})"
            raise UserError(f"The name {name[:60]} is already taken{owner}: choose another name.")
        owner = known.owner or ("" if made else person.name)
        changes = {"owner": owner, "private": known.private or private}
        if changes != {"owner": known.owner, "private": known.private}:
            _save(root, name, kind, known, changes)


def set_owner(root: Path, name: str, kind: Kind, owner: str) -> None:
    """Set the owner of an imported result; stories become private."""
    with lock_labels(root):
        _save(root, name, kind, load_labels(root, name, kind), {"owner": owner, "private": kind == "story"})


def _save(root: Path, name: str, kind: Kind, known: Labels, changes: dict[str, Any]) -> Labels:
    for word in (changes.get("name"), changes.get("note"), *changes.get("tags", ())):
        if word:
            check_text(word, "The label")
    now = {"changed": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        labels = Labels.model_validate(known.model_dump() | changes | now)
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error
    replace_text(label_path(root, name, kind), labels.model_dump_json(indent=2))
    return labels


@contextmanager
def lock_labels(root: Path) -> Iterator[None]:
    """Hold the lock of the labels file; raises UserError if the folder cannot be written."""
    folder = Path(root) / FOLDER
    with full_disk_sentence(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written to ({error.strerror or error}): is it read-only?") from error
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except filelock.Timeout as error:
        raise UserError(f"Another process is changing labels in {folder}: try again in a moment.") from error
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror or error}): is it read-only?") from error
    try:
        yield
    finally:
        lock.release()


@lru_cache(maxsize=20_000)
def _parse(file: Path, state: State) -> Labels:
    # The state is only part of the cache key: two changes may share a clock tick, but each creates a new inode.
    try:
        return Labels.model_validate_json(file.read_bytes())
    except (PermissionError, IsADirectoryError, ValidationError) as error:
        raise UserError(f"{file} is damaged: remove it and enter its data again.") from error


def label_path(root: Path, name: str, kind: Kind = "comparison") -> Path:
    """The file of a result's labels, which may not exist."""
    if "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise UserError(f"There is no result {name[:80]!r}: `kvlab runs ls` lists all.")
    return Path(root) / FOLDER / FOLDERS[kind] / f"{name}.json"
