"""Workers under Slurm through submitit (`kvlab[sweep]`): a job array, requeued when pre-empted or timed out.

Whether the work is done is read from the folder, and whether a job is alive from `squeue`: submitit would wait for the
result of a lost job forever on a Slurm without accounting.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.evaluate.request import EvalRequest
from kvlab.sweep.shards import CONTROL, read_plan
from kvlab.sweep.status import Follower, Say

try:
    from submitit import SlurmExecutor
    from submitit.helpers import Checkpointable, DelayedSubmission
except ImportError:
    Checkpointable = object  # so that this module can be imported without the extra

POLL_SECONDS = 5.0
MAX_SUBMISSIONS = 3  # submissions of what is missing, in addition to Slurm's own requeueing
MAX_REQUEUES = 1000  # after a time limit; measured shards are kept
SIGNAL_SECONDS = 120
HELD_REASONS = ("launch failed requeued held", "JobHeldAdmin")  # as `squeue` prints them, with _ for spaces
DEFAULTS: dict[str, Any] = {"job_name": "kvlab", "time": 240, "cpus_per_task": 4}


class SlurmWorker(Checkpointable):
    """What each task of the array runs: a worker on the folder, like `kvlab sweep work`."""

    worker: Any = None

    def __call__(self, folder: str, seconds: float) -> str:
        from kvlab.sweep.worker import Worker

        self.worker = Worker(Path(folder), seconds, say=lambda line: print(line, flush=True))
        self.worker.work()
        return self.worker.holder.worker

    def checkpoint(self, *arguments: Any, **options: Any) -> DelayedSubmission:
        """On the signal before a pre-emption: release the shard and requeue."""
        if self.worker is not None:
            self.worker.release()
        return DelayedSubmission(SlurmWorker(), *arguments, **options)


def run_slurm(folder: Path, workers: int, options: Mapping[str, Any], say: Say, seconds: float) -> None:
    """Submit workers, and resubmit while shards are left and no job is; return when no shard is left.

    The jobs outlive this process. Raises UserError for options that Slurm rejects, and if shards are left after the
    last submission.
    """
    executor = _executor(folder, read_plan(folder).requests, options)
    follower = Follower(folder, say)
    for _ in range(MAX_SUBMISSIONS):
        left = follower.look().left
        if not left:
            return
        job = _submit(executor, folder, min(workers, left), seconds)
        say(f"Slurm job {job}: ending this command does not end it (`scancel {job}` does).")
        while _is_alive(job, say) and follower.look().left:
            time.sleep(POLL_SECONDS)
    follower.check_finished(f"No job works on them; {folder / CONTROL / 'slurm'} has the jobs' logs.")


def _submit(executor: SlurmExecutor, folder: Path, count: int, seconds: float) -> str:
    """Submit an array of workers and return the job's id."""
    try:
        jobs = executor.map_array(SlurmWorker(), [str(folder.absolute())] * count, [seconds] * count)
    except Exception as error:  # submitit wraps sbatch's message in its own exceptions
        message = " ".join(str(error).split())[-200:]
        raise UserError(f"Slurm rejects the job ({message}): change --slurm.") from error
    return str(jobs[0].job_id).split("_")[0]


def _executor(folder: Path, requests: Sequence[EvalRequest], options: Mapping[str, Any]) -> SlurmExecutor:
    if Checkpointable is object:
        raise UserError("Slurm needs submitit: pip install 'kvlab[sweep]'.")
    try:
        executor = SlurmExecutor(folder.absolute() / CONTROL / "slurm" / "%A", max_num_timeout=MAX_REQUEUES)
    except RuntimeError:
        raise UserError("There is no srun here: run this on a machine that submits to Slurm.") from None
    gpus = {} if all(request.device == "cpu" for request in requests) else {"gpus_per_node": 1}
    settings = {"signal_delay_s": SIGNAL_SECONDS, **DEFAULTS, **gpus, **options}
    known = {name: settings.pop(name) for name in executor._valid_parameters() & settings.keys()}
    executor.update_parameters(**known, additional_parameters={"requeue": True, **settings})
    return executor


def _is_alive(job: str, say: Say) -> bool:
    """Whether a task of the job is queued or running; assumed if Slurm does not answer.

    Slurm holds tasks whose node died with their script and came back, until an administrator releases them: once only
    such tasks are left, the job is cancelled.
    """
    result = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T %r"], capture_output=True, text=True)
    if result.returncode != 0:
        return "Invalid job id" not in result.stderr
    tasks = [line.replace("_", " ") for line in result.stdout.splitlines() if line.strip()]
    held = [task for task in tasks if any(reason in task for reason in HELD_REASONS)]
    if held and len(held) == len(tasks):
        say(f"Slurm holds the rest of job {job} after a node was lost: it is cancelled.")
        subprocess.run(["scancel", job], capture_output=True, text=True)
    return len(held) < len(tasks)
