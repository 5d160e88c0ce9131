"""An evaluation in parts that share a folder of results, measured as Ray tasks."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import JsonValue

from kvlab.core.errors import UserError
from kvlab.core.plugins.load import ALLOWED, FILES
from kvlab.evaluation.harness import EvalResult, evaluate
from kvlab.evaluation.plan import Shard
from kvlab.evaluation.request import EvalRequest

Say = Callable[[str], None]


def measure_on_ray(
    request: EvalRequest, out: Path, count: int, options: dict[str, JsonValue], report: Say
) -> EvalResult:
    """Measure all parts as Ray tasks, one per GPU, or per CPU in a cluster without GPUs, and return their rows.

    Ray retries a task whose process or node is lost. Raises UserError if Ray is missing or cannot be reached, and if a
    part failed, after the others.
    """
    # Anyone who reaches a cluster's ports can run code on it, so every connection must present a token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'kvlab[ray]'.") from None
    environment = {name: os.environ[name] for name in (FILES, ALLOWED) if name in os.environ}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(**{**quiet, **options, "runtime_env": {"env_vars": environment}})
    except Exception as error:
        message = (str(error).strip().splitlines() or ["no message"])[0]
        raise UserError(f"Ray cannot be started or reached ({message}): check its address and its token.") from error
    try:
        resource = "num_gpus" if ray.cluster_resources().get("GPU") and request.device != "cpu" else "num_cpus"
        task = ray.remote(**{resource: 1})(measure_part)
        shards = [Shard(number, count) for number in range(1, count + 1)]
        pending = {task.remote(request, out, Path.cwd(), shard): shard for shard in shards}
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


def measure_part(request: EvalRequest, out: Path, directory: Path, shard: Shard) -> EvalResult:
    """The work of one task: a part of the evaluation, measured in the folder where the command was given."""
    with contextlib.chdir(directory):
        return evaluate(request, out, shard=shard)
