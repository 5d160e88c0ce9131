"""Report progress and check for cancellation."""

from __future__ import annotations

from collections.abc import Callable

from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.models.downloads import Report
from kvlab.requests.compare import Progress


class Cancelled(Exception):
    """Raised between steps when the user stops the work."""


class Watch:
    """Count and report steps; raise `Cancelled` at the next step after a stop was requested."""

    def __init__(
        self, total: int, report: Callable[[Progress], None] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        self.total, self.done = total, 0
        self.run_id: str | None = None
        self._report, self._cancelled = report, cancelled

    def advance(self, stage: str, steps: int = 1) -> None:
        """Report that `steps` more of `stage` are about to run."""
        self.check()
        self.done = min(self.done + steps, self.total)
        if self._report is not None:
            self._report(Progress(stage=stage, done=self.done, total=self.total, run_id=self.run_id))

    def check(self) -> None:
        """Raise `Cancelled` if a stop was requested."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled

    def reach(self, done: int, stage: str) -> None:
        """Jump to `done`, as a continuation may end early."""
        self.done = done
        self.advance(stage, 0)


def download_reporter(
    report: Callable[[Progress], None] | None, cancelled: Callable[[], bool] | None = None
) -> Report | None:
    """A callback that reports a download; it raises UserError once a stop was requested. None without `report`."""
    if report is None:
        return None

    def report_download(name: str, done: float, total: float) -> None:
        amount = f"{format_bytes(done)} of {format_bytes(total)}" if total else ""
        if cancelled is not None and cancelled():
            raise UserError(
                f"The download of {name} was stopped{f' at {amount}' if amount else ''}: complete files are kept, and "
                "the next download continues from them."
            )
        report(Progress(stage=f"downloading {name}{f': {amount}' if amount else ''}", done=0, total=1))

    return report_download
