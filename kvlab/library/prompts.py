"""Saved prompts, stored by name next to the runs: text or conversation, answer and facts, one JSON file each."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from kvlab.common.atomic_write import full_disk_sentence, replace_text
from kvlab.common.lab import acting, require_owner
from kvlab.core import Text, UserError, check_text, decode_text, in_one_sentence, quote_value, read_json
from kvlab.requests.compare import LARGEST_PROMPT_BYTES, OnePrompt
from kvlab.requests.conversation import Turn
from kvlab.requests.facts import Fact
from kvlab.trace.user_labels import lock_labels

FOLDER = ".prompts"
REMOVED = "removed"
LONGEST_NAME = 80
MOST_PROMPTS = 1000
LARGEST_FILE = 4 * LARGEST_PROMPT_BYTES  # JSON escapes some characters as six


def check_name(name: str) -> str:
    """The name, stripped.

    Raises:
        UserError: it is empty, too long, or has unprintable characters.
    """
    words = check_text(name, "The name").strip()
    if not words or len(words) > LONGEST_NAME or not words.isprintable() or set(words) & set("/\\"):
        raise UserError(
            f"Invalid prompt name {quote_value(words[:LONGEST_NAME])}: use 1 to {LONGEST_NAME} characters on one line, "
            "without slashes."
        )
    return words


class SavedPrompt(BaseModel):
    """A named prompt; with turns it is a conversation, and its text follows from them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, AfterValidator(check_name)]
    prompt: Text = Field(max_length=LARGEST_PROMPT_BYTES)
    turns: tuple[Turn, ...] = ()
    answer: str | None = None
    other_answers: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    saved: str = Field("", description="when, ISO 8601")
    owner: str = Field("", description="the only user who sees it on a shared server; empty: everyone")

    @property
    def asked(self) -> OnePrompt:
        """As used in a request."""
        return OnePrompt(**self.model_dump(exclude={"saved", "owner"}))

    @property
    def kind(self) -> str:
        """`a conversation of 3 turns`, or `4,210 characters`."""
        return f"a conversation of {len(self.turns)} turns" if self.turns else f"{len(self.prompt):,} characters"


def saved_prompts(root: Path, search: str = "") -> list[SavedPrompt]:
    """Readable prompts of the current user and unowned ones that contain all words in name or text, by name."""
    asked = search.casefold().split()
    read = (_read(file) for file in sorted((Path(root) / FOLDER).glob("*.json")))
    found = [one for one in read if one is not None and one.owner in ("", acting().name)]
    kept = [one for one in found if all(word in f"{one.name}\n{one.prompt}".casefold() for word in asked)]
    return sorted(kept, key=lambda one: one.name.casefold())


def load_prompt(root: Path, name: str) -> SavedPrompt:
    """The prompt of this name. Raises UserError if there is none, or its file is damaged."""
    owners = dict.fromkeys((acting().name, ""))
    files = [file for owner in owners if (file := _file(root, check_name(name), owner)).exists()]
    for file in files:
        if (found := _read(file)) is not None:
            return found
    for file in files:
        raise UserError(f"{file} is damaged: remove it, and save the prompt again.")
    raise UserError(f"There is no saved prompt {quote_value(name)} in {root}: `kvlab prompts ls` lists all.")


def save_prompt(root: Path, name: str, prompt: OnePrompt, replace: bool = False) -> SavedPrompt:
    """Atomically save a prompt under a name.

    Raises:
        UserError: the name is invalid or taken (without `replace`), or the folder is full or not writable.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    owner = acting().name
    saved = _made(name=name, saved=now, owner=owner, **prompt.model_dump(exclude={"name"}))
    with _changing(root):
        file = _file(root, saved.name, owner)
        if file.exists() and not replace:
            raise UserError(f"There is already a prompt {quote_value(saved.name)}: choose another name, or replace it.")
        if not file.exists() and sum(1 for _ in file.parent.glob("*.json")) >= MOST_PROMPTS:
            raise UserError(f"There are already {MOST_PROMPTS:,} saved prompts, the maximum: remove some.")
        replace_text(file, saved.model_dump_json(indent=1))
    return saved


def rename_prompt(root: Path, name: str, to: str) -> SavedPrompt:
    """Rename a prompt. Raises UserError if there is none, or the new name is taken."""
    known = load_prompt(root, name)
    require_owner(known.owner, "change this")
    renamed = _made(**known.model_dump() | {"name": to})
    with _changing(root):
        if renamed.name != known.name and _file(root, renamed.name, known.owner).exists():
            raise UserError(f"There is already a prompt {quote_value(renamed.name)}: choose another name.")
        replace_text(_file(root, renamed.name, known.owner), renamed.model_dump_json(indent=1))
        if renamed.name != known.name:
            _file(root, known.name, known.owner).unlink(missing_ok=True)
    return renamed


def remove_prompts(root: Path, names: Sequence[str]) -> list[str]:
    """Remove prompts; `restore_prompt` undoes it until another of the same name is removed.

    Raises UserError if one does not exist, before any is removed.
    """
    known = [load_prompt(root, name) for name in names]
    for one in known:
        require_owner(one.owner, "change this")
    with _changing(root):
        for one in known:
            file = _file(root, one.name, one.owner)
            _removed(file).parent.mkdir(exist_ok=True)
            os.replace(file, _removed(file))
    return [one.name for one in known]


def restore_prompt(root: Path, name: str) -> SavedPrompt:
    """Restore the prompt last removed under this name. Raises UserError if there is none, or the name is taken."""
    owner = acting().name
    files = {one: _file(root, check_name(name), one) for one in (owner, "")}
    owner = next((one for one, file in files.items() if _removed(file).exists()), owner)
    require_owner(owner, "bring this back")
    file = files[owner]
    with _changing(root):
        if not _removed(file).exists():
            raise UserError(f"No prompt {quote_value(name)} was removed from {root}.")
        if file.exists():
            raise UserError(f"There is another prompt {quote_value(name)} now: rename it first.")
        os.replace(_removed(file), file)
    return load_prompt(root, name)


def _made(**fields: Any) -> SavedPrompt:
    try:
        return SavedPrompt(**fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def _read(file: Path) -> SavedPrompt | None:
    """The prompt in a file; None if invalid or under another name."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            return None
        found = SavedPrompt.model_validate_json(decode_text(file.read_bytes(), str(file)))
    except (OSError, ValidationError, UserError):
        return None
    return found if _file(Path(), found.name, found.owner).name == file.name else None


def _file(root: Path, name: str, owner: str) -> Path:
    """A readable file name that is never a path; a checksum distinguishes similar names and owners."""
    words = "-".join("".join(character if character.isalnum() else " " for character in name.casefold()).split())
    short = words.encode()[:60].decode("utf-8", "ignore")
    identity = f"{name}\n{owner}" if owner else name
    slug = f"{short}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}".lstrip("-")
    return Path(root) / FOLDER / f"{slug}.json"


def _removed(file: Path) -> Path:
    return file.parent / REMOVED / file.name


@contextmanager
def _changing(root: Path) -> Iterator[None]:
    """Hold the lock of the folder's labels."""
    with lock_labels(root), full_disk_sentence(Path(root)):
        try:
            (Path(root) / FOLDER).mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise UserError(f"{root} cannot be changed ({error.strerror or error}): is it read-only?") from error


DRAFTS = ".drafts"
MOST_DRAFTS = 200  # the oldest beyond these are removed
ID = re.compile(r"[0-9a-f]{16}")


def store_draft(root: Path, content: JsonValue) -> str:
    """Store what was typed and return its id, which is equal for equal content.

    Raises UserError if the folder is full or not writable.
    """
    text = json.dumps(content, ensure_ascii=False)
    draft = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    file = Path(root) / DRAFTS / f"{draft}.json"
    if not file.exists():
        try:
            replace_text(file, text)
        except OSError as error:
            raise UserError(f"{file.parent} cannot be written ({error.strerror}): make it writable.") from error
        drafts = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in drafts[MOST_DRAFTS:]:
            old.unlink(missing_ok=True)
    return draft


def read_draft(root: Path, draft: str) -> JsonValue:
    """What was typed. Raises UserError if there is no such draft."""
    try:
        if ID.fullmatch(draft):
            found: JsonValue = read_json((Path(root) / DRAFTS / f"{draft}.json").read_text(encoding="utf-8"))
            return found
    except (OSError, ValueError):
        pass  # removed or damaged
    raise UserError(
        f"The text of this link is not in this folder of runs, which keeps the newest {MOST_DRAFTS}: paste it again."
    )
