"""Write files atomically, so that a killed or cancelled run stays readable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.core.errors import UserError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a hidden temporary file next to `path`, then move it into place in one step.

    Raises UserError if the disk is full; `path` is unchanged and no temporary file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with full_disk_sentence(path.parent):
        try:
            write(temporary)
            # Not every system lets a file be synced that is open for reading only.
            descriptor = os.open(temporary, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step; raises as `replace_file`."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@contextmanager
def full_disk_sentence(folder: Path) -> Iterator[None]:
    """Turn "no space left" from the system, Arrow or safetensors into a UserError."""
    try:
        yield
    except Exception as error:
        if not _is_disk_full(error):
            raise
        raise UserError(
            f"The disk that holds {folder} is full: what was saved before stays readable; "
            "free some space (or pass another --runs folder) and run again."
        ) from error


def _is_disk_full(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return True
    # Arrow and safetensors report the system's error by its text only.
    return "No space left on device" in str(error) or "os error 28" in str(error)
