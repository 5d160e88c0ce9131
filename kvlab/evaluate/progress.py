"""Show an evaluation's progress on standard error: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar

from kvlab.common.formatting import format_duration
from kvlab.common.terminal import progress_columns
from kvlab.evaluate.harness import Listener
from kvlab.requests.compare import Progress

LINE_SECONDS = 15.0


@contextmanager
def shown_progress(console: Console) -> Iterator[Listener]:
    """Yield a listener that shows progress reports; rows found on disk do not count towards the speed."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Bar(*progress_columns(), console=console, transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def listen(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=progress.stage)
            if progress.stage == "start":
                bar.reset(task, completed=progress.done, total=progress.total, description="start")

        yield listen


class _Lines:
    """Print a line every `LINE_SECONDS`, for logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = self.last_line = time.monotonic()
        self.resumed = 0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == "start":
            self.began = now
            self.resumed = progress.done
            self.console.print(f"{progress.total} measurements, {progress.done} of them already on disk")
        elif now - self.last_line >= LINE_SECONDS or progress.done == progress.total:
            self.last_line = now
            left = seconds_left(progress, self.resumed, now - self.began)
            left_text = f", about {format_duration(left)} left" if math.isfinite(left) else ""
            self.console.print(f"{progress.done}/{progress.total}{left_text} ({progress.stage})")


def seconds_left(progress: Progress, resumed: int, elapsed: float) -> float:
    """Estimate the time left from the speed so far; `resumed` rows took none of the `elapsed` seconds."""
    measured = progress.done - resumed
    return elapsed / measured * (progress.total - progress.done) if measured else float("inf")
