"""An evaluation in parts that share a folder of results: Ray tasks, or an array of Slurm jobs through submitit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import JsonValue

from kvlab.core.errors import UserError
from kvlab.core.plugins.load import ALLOWED, FILES
from kvlab.evaluate.harness import EvalResult, evaluate
from kvlab.evaluate.plan import Shard
from kvlab.evaluate.request import EvalRequest

Say = Callable[[str], None]

SLURM_DEFAULTS: dict[str, Any] = {"job_name": "kvlab", "time": 240, "cpus_per_task": 4}
MAX_REQUEUES = 1000  # after a time limit or a pre-emption; measured rows are kept


@dataclass(frozen=True)
class ShardTask:
    """The work of one task: a part of the evaluation, measured in the folder where the command was given."""

    request: EvalRequest
    out: Path
    directory: Path

    def __call__(self, shard: Shard) -> EvalResult:
        with contextlib.chdir(self.directory):
            return evaluate(self.request, self.out, shard=shard)

    def checkpoint(self, shard: Shard) -> Any:
        """What submitit queues again before a pre-emption or a time limit: the same part."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, shard)


def measure_on_ray(
    request: EvalRequest, out: Path, count: int, options: dict[str, JsonValue], report: Say
) -> EvalResult:
    """Measure all parts as Ray tasks, one per GPU, or per CPU in a cluster without GPUs, and return their rows.

    Ray retries a task whose process or node is lost. Raises UserError if Ray is missing or cannot be reached, and if a
    part failed, after the others.
    """
    ray = _connect(options)
    try:
        resource = "num_gpus" if ray.cluster_resources().get("GPU") and request.device != "cpu" else "num_cpus"
        task = ray.remote(**{resource: 1})(_run)
        work = ShardTask(request, out, Path.cwd())
        pending = {task.remote(work, shard): shard for shard in Shard.all_of(count)}
        results = []
        failures = []
        while pending:
            (finished,), _ = ray.wait(list(pending), num_returns=1)
            shard = pending.pop(finished)
            try:
                results.append(ray.get(finished))
                report(f"Part {shard} is measured.")
            except ray.exceptions.RayError as error:
                failures.append(f"Part {shard}: {getattr(error, 'cause', None) or error}")
                report(failures[-1])
    finally:
        ray.shutdown()
    if failures:
        raise UserError(
            f"{len(failures)} of {count} parts failed, the first: {failures[0]} What was measured is in {out}: "
            "the same command measures the rest."
        )
    rows = pd.concat([result.rows for result in results], ignore_index=True)
    return EvalResult(rows, list(dict.fromkeys(note for result in results for note in result.notes)))


def _run(task: ShardTask, shard: Shard) -> EvalResult:
    return task(shard)


def _connect(options: dict[str, JsonValue]) -> Any:
    # Anyone who reaches a cluster's ports can run code on it, so every connection must present a token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'kvlab[ray]'.") from None
    environment = {name: os.environ[name] for name in (FILES, ALLOWED) if name in os.environ}
    try:
        ray.init(
            **{"log_to_driver": False, "logging_level": "ERROR", **options, "runtime_env": {"env_vars": environment}}
        )
    except Exception as error:
        message = (str(error).strip().splitlines() or ["no message"])[0]
        raise UserError(f"Ray cannot be started or reached ({message}): check its address and its token.") from error
    return ray


def submit_to_slurm(request: EvalRequest, out: Path, count: int, options: dict[str, JsonValue]) -> str:
    """Submit all parts as one array of jobs, requeued if their node is lost, and return the job's id.

    Raises UserError if submitit or Slurm is missing, and for options that Slurm rejects.
    """
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise UserError("Slurm needs submitit: pip install 'kvlab[slurm]'.") from None
    try:
        executor = SlurmExecutor(out.absolute() / "slurm" / "%A", max_num_timeout=MAX_REQUEUES)
    except RuntimeError:
        raise UserError("There is no srun here: run this on a machine that submits to Slurm.") from None
    gpus = {} if request.device == "cpu" else {"gpus_per_node": 1}
    settings = SLURM_DEFAULTS | gpus | {name.replace("-", "_"): value for name, value in options.items()}
    known = {name: settings.pop(name) for name in executor._valid_parameters() & settings.keys()}
    executor.update_parameters(**known, additional_parameters={"requeue": True, **settings})
    try:
        jobs = executor.map_array(ShardTask(request, out, Path.cwd()), list(Shard.all_of(count)))
    except Exception as error:  # submitit wraps sbatch's message in its own exceptions
        message = " ".join(str(error).split())[-200:]
        raise UserError(f"Slurm rejects the job ({message}): change the options of --on slurm.") from error
    return str(jobs[0].job_id).split("_")[0]
