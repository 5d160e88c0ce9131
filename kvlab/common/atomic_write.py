"""Write files atomically, so that a killed or cancelled run stays readable."""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.core.errors import UserError

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.01


def write_ahead(connection: sqlite3.Connection, patience: float = PATIENCE_SECONDS) -> None:
    """Switch the file to write-ahead logging, so that readers and a writer do not block each other.

    Raises sqlite3.OperationalError if another process locks the file for longer than `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself while the journal mode changes or the last connection closes.
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run all statements inside, or none of them, without other processes in between."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


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
        # Arrow and safetensors report the system's error by its text only.
        texts = ("No space left on device", "os error 28")
        is_numbered = isinstance(error, OSError) and error.errno in NO_SPACE
        if not is_numbered and not any(text in str(error) for text in texts):
            raise
        raise UserError(
            f"The disk that holds {folder} is full: what was saved before stays readable; "
            "free some space (or pass another --runs folder) and run again."
        ) from error
