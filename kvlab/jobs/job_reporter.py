"""Progress, cancellation and outcome of a running job, between the worker and the queue's database."""

import json
import os
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from kvlab.common.limits import is_under_way
from kvlab.core.errors import UserError
from kvlab.jobs.access_check import full_disk
from kvlab.jobs.queue_db import FOLDER
from kvlab.requests.compare import Progress
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


REPORT_SECONDS = 0.2


class JobReporter:
    """Passes progress and texts of a running job to pages, and cancellation back, a few times per second at most."""

    def __init__(
        self, connection: sqlite3.Connection, job_id: str, stop: threading.Event, root: Path, log: TextIO | None = None
    ) -> None:
        """`log` is where lines go, by default standard output; `between_steps` is called a few times per second."""
        self.connection = connection
        self.job_id = job_id
        self.stop = stop
        self.root = root
        self.log = log
        self.reason = ""
        self.between_steps: Callable[[], object] = lambda: None
        self._run_ids: list[str] = []
        self._last: Progress | None = None
        self._reported = self._checked = 0.0

    def report(self, progress: Progress) -> None:
        """Store this progress: a new stage or run always, otherwise a few times per second."""
        if progress.live is not None:
            write_live(self.root, self.job_id, progress.live)
        last = self._last
        self._last = progress
        is_new = last is None or (last.stage, last.run_id) != (progress.stage, progress.run_id)
        if is_new:
            log_line(progress.stage, self.log)
        if not is_new and progress.done < progress.total and time.monotonic() - self._reported < REPORT_SECONDS:
            return
        if progress.run_id and progress.run_id not in self._run_ids:
            self._run_ids.append(progress.run_id)
        self._reported = time.monotonic()
        self.connection.execute(
            "UPDATE jobs SET progress = ?, run_ids = ? WHERE job_id = ?",
            (progress.model_dump_json(exclude={"live"}), json.dumps(self._run_ids), self.job_id),
        )

    def cancelled(self) -> bool:
        """Whether the job must stop; asked between its steps."""
        if self.stop.is_set():
            self.reason = self.reason or "The worker was stopped; what was saved is kept."
        elif not self.reason and time.monotonic() - self._checked >= REPORT_SECONDS:
            if not is_under_way():
                self.between_steps()
            self._checked = time.monotonic()
            row = self.connection.execute("SELECT cancel FROM jobs WHERE job_id = ?", (self.job_id,)).fetchone()
            if row["cancel"]:
                self.reason = "Cancelled; what was saved is kept."
            elif full := full_disk(self.root):
                self.reason = (
                    f"Stopped: {full}. What was finished is kept, and the job can be resumed once there is room."
                )
        return bool(self.reason)

    def outcome(self, work: Callable[[], None]) -> tuple[str, str]:
        """Carry out `work`; the state in which it ended, and a message."""
        try:
            work()
        except KeyboardInterrupt:
            return "cancelled", "Stopped."
        except UserError as error:
            return ("cancelled", f"{self.reason} {error}") if self.reason else ("failed", str(error))
        except Exception as error:
            traceback.print_exc(file=self.log)
            # The first line; some libraries append a page of advice, which is in the log.
            first = (str(error).strip().splitlines() or ["no message"])[0]
            return "failed", f"{type(error).__name__}: {first} (see the log)."
        return ("cancelled", self.reason) if self.reason else ("complete", "")


def log_line(line: str, file: TextIO | None = None) -> None:
    """Print a line with the time."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=file, flush=True)
