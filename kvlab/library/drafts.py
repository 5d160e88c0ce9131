"""Typed texts that are not saved under a name, next to the runs: a link holds the short id of one, and no text."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from pydantic import JsonValue

from kvlab.common.atomic_write import replace_text
from kvlab.core.errors import UserError
from kvlab.core.validation import read_json

DRAFTS = ".drafts"
MOST_DRAFTS = 200  # the oldest beyond these are removed
ID = re.compile(r"[0-9a-f]{16}")


def store_draft(root: Path, content: JsonValue) -> str:
    """Store what was typed and return its id, which is equal for equal content.

    Raises UserError if the folder is full or not writable.
    """
    text = json.dumps(content, ensure_ascii=False)
    draft = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    file = _draft_file(root, draft)
    if not file.exists():
        try:
            replace_text(file, text)
        except OSError as error:
            raise UserError(f"{file.parent} cannot be written ({error.strerror}): make it writable.") from error
        _remove_oldest(file.parent)
    return draft


def read_draft(root: Path, draft: str) -> JsonValue:
    """What was typed. Raises UserError if there is no such draft."""
    try:
        if ID.fullmatch(draft):
            found: JsonValue = read_json(_draft_file(root, draft).read_text(encoding="utf-8"))
            return found
    except (OSError, ValueError):
        pass  # removed or damaged
    raise UserError(
        f"The text of this link is not in this folder of runs, which keeps the newest {MOST_DRAFTS}: paste it again."
    )


def _draft_file(root: Path, draft: str) -> Path:
    return Path(root) / DRAFTS / f"{draft}.json"


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MOST_DRAFTS:]:
        file.unlink(missing_ok=True)
