"""Workers on a Ray cluster (`kvlab[ray]`): one task per GPU, or per CPU in a cluster without GPUs.

Each task is a worker like those of `kvlab sweep work`, which share shards by leases; Ray retries the tasks of lost
processes and nodes. All nodes must see the folder under the same path.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

from kvlab.core.errors import UserError
from kvlab.core.plugins.load import ALLOWED, FILES
from kvlab.sweep.status import Follower, Say

POLL_SECONDS = 2.0
END_SECONDS = 20.0
CONNECT_SECONDS = 10.0


def run_ray(folder: Path, workers: int | None, address: str | None, say: Say, seconds: float) -> None:
    """Start workers and wait until no shard is left.

    Raises UserError if Ray is not installed or does not answer, and if shards are left when all workers have ended.
    """
    ray = _import_ray()
    check_address(address)
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {name: os.environ[name] for name in (FILES, ALLOWED) if name in os.environ}},
        )
    except Exception as error:
        message = (str(error).strip().splitlines() or ["no message"])[0]
        raise UserError(f"Ray cannot be started or reached ({message}): check --address and its token.") from error
    try:
        _run_tasks(ray, folder.absolute(), workers, say, seconds)
    finally:
        ray.shutdown()


def _run_tasks(ray: Any, folder: Path, workers: int | None, say: Say, seconds: float) -> None:
    resource, available = _resource(ray.cluster_resources())
    count = min(available, workers or available)
    work = ray.remote(max_retries=-1, **{resource: 1})(_work)
    pending = [work.remote(str(folder), seconds) for _ in range(count)]
    say(f"{count} workers, one per {'GPU' if resource == 'num_gpus' else 'CPU'}")
    follower = Follower(folder, say)
    while pending and follower.look().left:
        done, pending = ray.wait(pending, timeout=POLL_SECONDS)
        for reference in done:
            try:
                ray.get(reference)
            except ray.exceptions.RayError as error:  # it refused: another version, other weights, a full disk
                say(str(getattr(error, "cause", None) or error))
    if pending:
        ray.wait(pending, num_returns=len(pending), timeout=END_SECONDS)
    follower.check_finished("No worker is left.")


def _work(folder: str, seconds: float) -> None:
    from kvlab.sweep.worker import Worker

    Worker(Path(folder), seconds).work()


def check_address(address: str | None) -> None:
    """Raise UserError if nothing listens at a `HOST:PORT`, where Ray itself would retry for minutes."""
    match = re.fullmatch(r"(?:ray://)?\[?([^/\]]+?)\]?:(\d{1,5})", address or "")
    if match is None:  # `auto` or another keyword of Ray
        return
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_SECONDS).close()
    except (OSError, OverflowError):
        raise UserError(f"No Ray answers at {address}: check --address, or start it: ray start --head.") from None


def _import_ray() -> Any:
    # Anyone who reaches a cluster's ports can run code on it, so every connection must present a token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'kvlab[ray]'.") from None
    return ray


def _resource(resources: dict[str, float]) -> tuple[str, int]:
    """The option that requests a worker's GPU or CPU, and how many there are; raises UserError if there is neither."""
    for resource, option in (("GPU", "num_gpus"), ("CPU", "num_cpus")):
        if resources.get(resource, 0) >= 1:
            return option, int(resources[resource])
    raise UserError("The Ray cluster has neither GPUs nor CPUs: start a node that has.")
