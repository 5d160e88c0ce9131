"""SQLite transactions, and files that many processes open at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
