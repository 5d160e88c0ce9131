"""An evaluation as a job of the queue: results in the folder of runs, progress in prompts, a stop that keeps rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kvlab.evaluate.harness import evaluate
from kvlab.evaluate.progress import seconds_left
from kvlab.evaluate.request import EvalJob
from kvlab.requests.compare import Progress

FOLDER = "eval"
Report = Callable[[Progress], None]


def run_evaluation(job: EvalJob, root: Path, *, progress: Report, cancelled: Callable[[], bool]) -> Path:
    """Evaluate into `<root>/eval/<name>` and return the folder; rows that lie there are not measured again.

    Prints what was left out of files, for the job's log. Raises as `evaluate`.
    """
    folder = Path(root) / FOLDER / job.name
    told = PromptsDone(len(job.request.all_choices), progress)
    result = evaluate(job.request, folder, on_progress=told, cancelled=cancelled)
    for note in result.notes:
        print(note, flush=True)
    return folder


class PromptsDone:
    """Progress in prompts, with the time left at the speed so far; rows found on disk do not count towards it."""

    def __init__(self, choices: int, report: Report) -> None:
        self.choices, self.report = choices, report
        self.begun, self.resumed = time.monotonic(), 0

    def __call__(self, progress: Progress) -> None:
        """Pass a report of the evaluation on."""
        if progress.stage == "start":
            self.begun, self.resumed = time.monotonic(), progress.done
        left = seconds_left(progress, self.resumed, time.monotonic() - self.begun)
        of = f"{progress.done // self.choices} of {progress.total // self.choices} prompts"
        known = progress.done > self.resumed and progress.done < progress.total
        words = [of, *([f"about {time_words(left)} left"] if known else []), progress.stage]
        self.report(progress.model_copy(update={"stage": " · ".join(words)}) if progress.total > 1 else progress)


def time_words(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
