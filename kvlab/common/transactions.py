"""SQLite statements that happen all or not at all, and files that many processes open at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.01


def write_ahead(connection: sqlite3.Connection, patience: float = PATIENCE_SECONDS) -> None:
    """Let readers and a writer of this file work beside each other, also where others open it at the same moment.

    Raises sqlite3.OperationalError where another process holds the file for longer than `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself where the journal's mode changes, or while the last user closes the file.
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All statements inside, or none of them, with no other process in between."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
