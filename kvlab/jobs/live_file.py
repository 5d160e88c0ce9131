"""The texts of a running comparison, passed from the worker to pages as one small file next to the job's log."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from kvlab.jobs.queue_db import FOLDER
from kvlab.requests.live_texts import LiveTexts

LONGEST_BYTES = 16 * 2**20  # a larger file is not one of these


def live_path(root: Path, job_id: str) -> Path:
    """The file of a job; it exists while the job writes texts."""
    return Path(root) / FOLDER / f"{job_id}.live.json"


def write_live(root: Path, job_id: str, live: LiveTexts) -> None:
    """Replace the file in one step. It is only for show, so it is not synced, and a full disk is no error."""
    path = live_path(root, job_id)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(live.model_dump_json(), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_live(root: Path, job_id: str) -> LiveTexts | None:
    """The texts so far; None if there are none, or the file is damaged."""
    try:
        path = live_path(root, job_id)
        if path.stat().st_size > LONGEST_BYTES:
            return None
        return LiveTexts.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def remove_live(root: Path, job_id: str) -> None:
    """Remove the file of a job that has ended: its texts are in its runs."""
    with suppress(OSError):
        live_path(root, job_id).unlink(missing_ok=True)
