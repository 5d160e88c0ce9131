"""The queue's SQLite file, `<runs>/.jobs/queue.sqlite`: jobs, their order, and the slots of workers.

If the runs are on a shared disk, the file is on a local one: SQLite's write-ahead log needs shared memory, so several
machines would damage it.
"""

import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path

from kvlab.common.atomic_write import PATIENCE_SECONDS, transaction, write_ahead
from kvlab.core.errors import UserError
from kvlab.trace.index import NOT_ITS_FAULT

FOLDER = ".jobs"
MOUNTS = Path("/proc/mounts")  # Linux only; elsewhere every disk counts as local
SHARED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
}  # fmt: skip
ELSEWHERE = "KVLAB_QUEUE"


def queue_folder(root: Path) -> Path:
    """The folder of the queue's file: `<root>/.jobs`, or a local one. It may not exist yet.

    Raises UserError if the local folder is on a shared disk too, or belongs to another user.
    """
    folder = Path(root) / FOLDER
    if shared_disk(folder) is None:
        return folder
    base = os.environ.get(ELSEWHERE) or Path(tempfile.gettempdir()) / f"kvlab-queue-{os.getuid()}"
    local = Path(base) / hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]
    if (kind := shared_disk(local)) is not None:
        raise UserError(
            f"The queue cannot be on a shared disk, and {local} is on one too ({kind}): name a folder on this "
            f"machine's own disk in {ELSEWHERE}."
        )
    for created in (local.parent, local):
        created.mkdir(mode=0o700, parents=True, exist_ok=True)
        if created.stat().st_uid != os.getuid():
            raise UserError(f"{created} belongs to another user: name a folder of yours in {ELSEWHERE}.")
    return local


def queue_note(root: Path) -> str:
    """A sentence if the queue is not with the runs; else empty."""
    kind = shared_disk(Path(root) / FOLDER)
    if kind is None:
        return ""
    return (
        f"{root} is on a shared disk ({kind}), where the queue's SQLite file cannot be: it is in "
        f"{queue_folder(root)}, for this machine alone. For many machines there is `kvlab eval --on`."
    )


def shared_disk(path: Path) -> str | None:
    """The file system of a shared disk that the path is on, such as `nfs4`; None for a local disk."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _shared_kind(os.path.realpath(path), mounts)


@lru_cache(maxsize=64)
def _shared_kind(real_path: str, mounts: str) -> str | None:
    real = Path(real_path)
    best = (-1, "")
    for line in mounts.splitlines():
        _, point, kind, *_ = [*line.split(), "", "", ""]
        where = Path(point.replace("\\040", " "))
        if real.is_relative_to(where):
            best = max(best, (len(where.parts), kind), key=lambda mount: mount[0])
    return best[1] if best[1] in SHARED else None


LIVE = "live"  # kind of the actions of live sessions
ASIDE_RUNS = 8  # kept of `aside` requests
VERSION = 2  # of the tables; older ones are migrated in place
TABLES = (
    """CREATE TABLE IF NOT EXISTS jobs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        job_id TEXT UNIQUE NOT NULL,
        session TEXT NOT NULL,
        title TEXT NOT NULL,
        request TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'queued',
        message TEXT NOT NULL DEFAULT '',
        created REAL NOT NULL,
        started REAL,
        finished REAL,
        worker_pid INTEGER,
        cancel INTEGER NOT NULL DEFAULT 0,
        progress TEXT,
        run_ids TEXT NOT NULL DEFAULT '[]'
    )""",
    "CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state)",
    """CREATE TABLE IF NOT EXISTS workers (
        place INTEGER PRIMARY KEY,
        pid INTEGER NOT NULL,
        host TEXT NOT NULL,
        since TEXT NOT NULL,
        heartbeat REAL NOT NULL,
        devices TEXT NOT NULL DEFAULT ''
    )""",
    """CREATE TABLE IF NOT EXISTS keepers (
        pid INTEGER NOT NULL,
        host TEXT NOT NULL,
        since TEXT NOT NULL,
        heartbeat REAL NOT NULL,
        PRIMARY KEY (pid, host)
    )""",
)
ADDED = {  # to `jobs` since version 1
    "owner": "TEXT NOT NULL DEFAULT ''",
    "device": "TEXT NOT NULL DEFAULT ''",
    "worker_host": "TEXT NOT NULL DEFAULT ''",
    "worker_place": "INTEGER",
    "begun": "INTEGER NOT NULL DEFAULT 0",  # how often a worker claimed it
}


@contextmanager
def database(root: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the queue of this runs folder, created if missing; statements commit one by one.

    Raises UserError if the file cannot be read or written, is locked by another process for too long, or is damaged.
    Other errors of the statements inside pass unchanged.
    """
    folder = Path(root) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder = queue_folder(root)
        folder.mkdir(parents=True, exist_ok=True)
        connection = _open(folder / "queue.sqlite")
    except OSError as error:
        raise UserError(_unusable(folder, error)) from error
    except sqlite3.DatabaseError as error:
        raise UserError(_why(folder, error) or _unusable(folder, error)) from error
    with closing(connection):
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            if (sentence := _why(folder, error)) is None:
                raise
            raise UserError(sentence) from error


def _open(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=PATIENCE_SECONDS, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        write_ahead(connection)
        if connection.execute("PRAGMA user_version").fetchone()[0] < VERSION:
            with transaction(connection):
                # Harmless where another process did it while this one waited for the lock.
                for statement in TABLES:
                    connection.execute(statement)
                columns = {row["name"] for row in connection.execute("PRAGMA table_info(jobs)")}
                for name in [name for name in ADDED if name not in columns]:
                    connection.execute(f"ALTER TABLE jobs ADD COLUMN {name} {ADDED[name]}")
                if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'worker'").fetchone():
                    connection.execute(
                        "INSERT OR IGNORE INTO workers SELECT place, pid, host, since, heartbeat, '' FROM worker"
                    )
                    connection.execute("DROP TABLE worker")
                connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _why(folder: Path, error: sqlite3.DatabaseError) -> str | None:
    """What is wrong with the file, from SQLite's error code; None if the statement is at fault."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"The queue in {folder} is locked by another process ({error}): try again."
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
        return f"The queue {folder}/queue.sqlite is damaged: delete it; the runs are not touched."
    return _unusable(folder, error) if code in NOT_ITS_FAULT else None


def _unusable(folder: Path, error: Exception) -> str:
    return f"The queue in {folder} cannot be used ({error}): is the disk full or not writable?"


def log_path(root: Path, job_id: str) -> Path:
    """The file of a job's log."""
    return Path(root) / FOLDER / f"{job_id}.log"


def clear_aside(folder: Path, keep: int = ASIDE_RUNS) -> None:
    """Remove all but the newest runs of `aside` requests, which are in no list.

    A run that another process has open stays readable there.
    """
    runs = [path.parent for path in Path(folder).glob("*/run.json")]
    newest = sorted(runs, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def queue_order(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """Waiting jobs (job_id, device, kind) in the order they will run: the user served longest ago is next.

    Unnamed users are told apart by browser session.
    """
    # Prefixes keep sessions and owners of the same name apart.
    turn_column = "CASE owner WHEN '' THEN 's' || session ELSE 'o' || owner END"
    served = {
        row["turn"]: row["moment"]
        for row in connection.execute(
            f"SELECT {turn_column} AS turn, MAX(started) AS moment FROM jobs WHERE started IS NOT NULL GROUP BY 1"
        )
    }
    waiting: dict[str, deque[sqlite3.Row]] = {}
    kind = "CASE WHEN json_valid(request) THEN json_extract(request, '$.kind') END AS kind"
    columns = f"number, job_id, device, {kind}, {turn_column} AS turn"
    question = f"SELECT {columns} FROM jobs WHERE state = 'queued' ORDER BY number"
    for row in connection.execute(question):
        waiting.setdefault(row["turn"], deque()).append(row)
    order = []
    moment = max(served.values(), default=0.0)
    while waiting:
        turn = min(waiting, key=lambda name: (served.get(name, 0.0), waiting[name][0]["number"]))
        order.append(waiting[turn].popleft())
        served[turn] = moment = moment + 1
        if not waiting[turn]:
            del waiting[turn]
    return order


def claim(
    connection: sqlite3.Connection,
    pid: int,
    host: str = "",
    place: int = 1,
    left_to_others: Sequence[str] = (),
    live: bool = False,
) -> sqlite3.Row | None:
    """Mark the next job as running under this worker and return it; None if none is waiting.

    Jobs that name one of `left_to_others`, the devices of other workers, are skipped. `live`: only actions of live
    sessions; else only the other jobs.
    """
    with transaction(connection):
        waiting = [row for row in queue_order(connection) if row["device"] not in left_to_others]
        able = [row["job_id"] for row in waiting if (row["kind"] == LIVE) == live]
        if not able:
            return None
        connection.execute(
            "UPDATE jobs SET state = 'running', worker_pid = ?, worker_host = ?, worker_place = ?, "
            "started = ?, begun = begun + 1 WHERE job_id = ?",
            (pid, host, place, time.time(), able[0]),
        )
        return connection.execute("SELECT * FROM jobs WHERE job_id = ?", (able[0],)).fetchone()


def finish(connection: sqlite3.Connection, job_id: str, state: str, message: str = "") -> None:
    """Record how a job ended, unless it has ended already."""
    connection.execute(
        "UPDATE jobs SET state = ?, message = ?, finished = ? WHERE job_id = ? AND state IN ('queued', 'running')",
        (state, message, time.time(), job_id),
    )
