"""Progress out, cancellation in."""

from __future__ import annotations

from collections.abc import Callable

from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.models.downloads import Report
from kvlab.requests.compare import Progress


class Cancelled(Exception):
    """Somebody asked for the run to stop."""


class Watch:
    """Counts steps, reports them, and raises `Cancelled` at the next step once asked to stop."""

    def __init__(
        self, total: int, report: Callable[[Progress], None] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        self.total, self.done = total, 0
        self.run_id: str | None = None
        self._report, self._cancelled = report, cancelled

    def advance(self, stage: str, steps: int = 1) -> None:
        """One more step of `stage` is about to run."""
        self.check()
        self.done = min(self.done + steps, self.total)
        if self._report is not None:
            self._report(Progress(stage=stage, done=self.done, total=self.total, run_id=self.run_id))

    def check(self) -> None:
        """Raises `Cancelled` once asked to stop; nothing is counted."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled

    def reach(self, done: int, stage: str) -> None:
        """Jump to `done`: a continuation may end early."""
        self.done = done
        self.advance(stage, 0)


def before_steps(
    report: Callable[[Progress], None] | None, cancelled: Callable[[], bool] | None = None
) -> Report | None:
    """Tells of a download, before there are steps to count; once asked to stop it raises a UserError that says so."""
    if report is None:
        return None

    def told(name: str, done: float, total: float) -> None:
        far = f"{format_bytes(done)} of {format_bytes(total)}" if total else ""
        if cancelled is not None and cancelled():
            raise UserError(
                f"The download of {name} was stopped{f' at {far}' if far else ''}: files that were complete stay on "
                "this disk, and the next download goes on from them."
            )
        report(Progress(stage=f"downloading {name}{f': {far}' if far else ''}", done=0, total=1))

    return told
