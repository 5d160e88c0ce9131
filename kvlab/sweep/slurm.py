"""Workers under Slurm through submitit (`kvlab[sweep]`): a job array, requeued when pre-empted or timed out.

Whether the work is done is read from files, and whether a job still lives from `squeue`: the result of a job that was
lost would be waited for in vain where Slurm keeps no accounts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalRequest
from kvlab.sweep.progress import Follower, Say
from kvlab.sweep.shards import CONTROL, read_plan

try:
    from submitit import SlurmExecutor
    from submitit.helpers import Checkpointable, DelayedSubmission
except ImportError:
    Checkpointable = object  # so that this module can be read without the extra

LOOK_SECONDS = 5.0
MOST_ROUNDS = 3  # times that what is missing is submitted, beside what Slurm requeues itself
MOST_REQUEUES = 1000  # after a time limit; shards that are there stay there
SIGNAL_SECONDS = 120
HELD_BACK = ("launch failed requeued held", "JobHeldAdmin")  # what Slurm gives as the reason, with _ for spaces
DEFAULTS: dict[str, Any] = {"job_name": "kvlab", "time": 240, "cpus_per_task": 4}


class SlurmWorker(Checkpointable):
    """What a task of the array runs: a worker on the folder, as `kvlab sweep work`."""

    worker: Any = None

    def __call__(self, folder: str, seconds: float) -> str:
        from kvlab.sweep.worker import Worker

        self.worker = Worker(Path(folder), seconds, say=lambda line: print(line, flush=True))
        self.worker.work()
        return self.worker.holder.worker

    def checkpoint(self, *arguments: Any, **options: Any) -> DelayedSubmission:
        """On the signal before a pre-emption: give the shard back, and be queued again."""
        if self.worker is not None:
            self.worker.give_back()
        return DelayedSubmission(SlurmWorker(), *arguments, **options)


def run_slurm(folder: Path, workers: int, options: Mapping[str, Any], say: Say, seconds: float) -> None:
    """Submit workers, and again while shards are left and no job is; returns when all shards are dealt with.

    Ending this process does not end the jobs. Raises UserError for options that Slurm does not take, and where shards
    are left after all.
    """
    executor = _executor(folder, read_plan(folder).requests, options)
    follower = Follower(folder, say)
    for _ in range(MOST_ROUNDS):
        left = follower.look().left
        if not left:
            return
        jobs = _submit(executor, folder, min(workers, left), seconds)
        say(f"Slurm job {jobs}: ending this command does not end it (`scancel {jobs}` does).")
        while _moves(jobs, say) and follower.look().left:
            time.sleep(LOOK_SECONDS)
    now = follower.look()
    if now.left:
        why = now.refusals[-1] if now.refusals else f"{folder / CONTROL / 'slurm'} has the jobs' logs."
        raise UserError(f"{now.left} of {now.planned} shards are left and no job works on them. {why}")


def _submit(executor: SlurmExecutor, folder: Path, count: int, seconds: float) -> str:
    """Submit an array of workers; returns the job's id."""
    try:
        jobs = executor.map_array(SlurmWorker(), [str(folder.absolute())] * count, [seconds] * count)
    except Exception as error:  # submitit passes on what sbatch says in errors of its own
        said = " ".join(str(error).split())[-200:]
        raise UserError(f"Slurm does not take the job ({said}): change --slurm.") from error
    return str(jobs[0].job_id).split("_")[0]


def _executor(folder: Path, requests: Sequence[EvalRequest], options: Mapping[str, Any]) -> SlurmExecutor:
    if Checkpointable is object:
        raise UserError("Slurm needs submitit: pip install 'kvlab[sweep]'.")
    try:
        executor = SlurmExecutor(folder.absolute() / CONTROL / "slurm" / "%A", max_num_timeout=MOST_REQUEUES)
    except RuntimeError:
        raise UserError("There is no srun here: run this on a machine that submits to Slurm.") from None
    gpus = {} if all(request.device == "cpu" for request in requests) else {"gpus_per_node": 1}
    wanted = {**DEFAULTS, **gpus, **options}
    own = {name: value for name, value in wanted.items() if name in executor._valid_parameters()}
    further = {name: value for name, value in wanted.items() if name not in own}
    executor.update_parameters(
        **{"signal_delay_s": SIGNAL_SECONDS, **own}, additional_parameters={"requeue": True, **further}
    )
    return executor


def _moves(job: str, say: Say) -> bool:
    """Whether a task of the job waits its turn or runs; asked again where Slurm does not answer.

    Tasks that Slurm put back and holds, as it does when a node died with their script and came back, would wait for an
    administrator: once nothing else is left of the job, it is cancelled.
    """
    found = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T %r"], capture_output=True, text=True)
    if found.returncode != 0:
        return "Invalid job id" not in found.stderr
    tasks = [line.replace("_", " ") for line in found.stdout.splitlines() if line.strip()]
    held = [task for task in tasks if any(words in task for words in HELD_BACK)]
    if held and len(held) == len(tasks):
        say(f"Slurm holds what is left of job {job} back after a node was lost: it is cancelled.")
        subprocess.run(["scancel", job], capture_output=True, text=True)
    return len(held) < len(tasks)
