"""Run functions the worker is given by name in tests, in place of the engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.requests.compare import CompareRequest, Progress
from tests.synthetic.runs import write_synthetic_run

HOLD = "hold"  # while a file of this name lies in the folder of runs, the engine waits with its first words written


def compare(
    request: CompareRequest,
    root: Path,
    *,
    comparison_id: str,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> list[Path]:
    """Writes a small run for each method; what the prompt says decides what goes wrong, or that the engine runs."""
    if request.prompt.startswith("The real engine"):
        from kvlab.engine import compare as real
        from kvlab.engine import progress as engine_progress

        engine_progress.LIVE_SECONDS, engine_progress.LIVE_SHARE = 0.0, 1.0  # a fast machine would pass the first words

        def progress_and_wait(said: Progress) -> None:
            progress(said)
            if said.live is not None and all(len(one.text) > 10 for one in said.live.texts):
                while (root / HOLD).exists() and not cancelled():
                    time.sleep(0.05)

        return real(request, root, comparison_id=comparison_id, progress=progress_and_wait, cancelled=cancelled)
    paths = []
    for choice in request.choices:
        path = write_synthetic_run(root, method=choice.method, comparison_id=comparison_id, prompt_tokens=16, steps=2)
        paths.append(path)
        progress(Progress(stage=f"run {choice.method}", done=len(paths), total=len(request.choices), run_id=path.name))
        _act(request.prompt)
        if request.prompt == "slow":
            for _ in range(600):
                if cancelled():
                    return paths
                time.sleep(0.05)
        while request.prompt == "download":
            if cancelled():
                raise UserError("The download was stopped: what is complete stays.")
            time.sleep(0.05)
    return paths


def _act(prompt: str) -> None:
    if prompt == "user error":
        raise UserError("There is no model nowhere: name one that exists.")
    if prompt == "crash":
        raise RuntimeError("CUDA out of memory")
    if prompt == "print":
        os.write(2, b"written by a C library\n")
        print("step 1\rstep 2")
    if prompt == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def killed_in_the_second(request: CompareRequest, root: Path, **how: Any) -> list[Path]:
    """The engine itself, in a worker that dies when the second run is about to be finished."""
    from kvlab.engine import compare
    from kvlab.engine.active_run import ActiveRun

    finish = ActiveRun.finish

    def die_in_the_second(self: ActiveRun, *rest: Any) -> None:
        if self.run.choice.label == request.runs[1].label:
            os.kill(os.getpid(), signal.SIGKILL)
        finish(self, *rest)

    ActiveRun.finish = die_in_the_second
    return compare(request, root, **how)
