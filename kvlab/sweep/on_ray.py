"""Workers on a Ray cluster (`kvlab[ray]`): an actor a GPU, or a CPU where there is none, each with its model kept warm.

The folder must be reachable from every node under the same path.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from kvlab.common.errors import UserError
from kvlab.plugins.requested import ALLOWED, FILES
from kvlab.sweep import shards
from kvlab.sweep.progress import Follower, Say

LOOK_SECONDS = 2.0
END_SECONDS = 20.0
ANSWER_SECONDS = 10.0


class Evaluator:
    """A worker as an actor: made again, its model too, when its process or its node died."""

    def __init__(self, folder: str, seconds: float) -> None:
        from kvlab.sweep.worker import Worker

        self.worker = Worker(Path(folder), seconds)
        self.shards = {shard.name: shard for shard in self.worker.plan.shards}

    def ready(self) -> int:
        """The process id, once there is one."""
        return os.getpid()

    def run(self, name: str) -> str:
        """As `Worker.run`."""
        return self.worker.run(self.shards[name])

    def end(self) -> None:
        """As `Worker.end`."""
        self.worker.end()


def check_answers(address: str | None) -> None:
    """Nothing, where somebody listens at a `HOST:PORT`; Ray itself would try for minutes. Raises UserError."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\]]+?)\]?:(\d{1,5})", address or "")
    if found is None:  # `auto`, or a word of Ray's own
        return
    try:
        socket.create_connection((found[1], int(found[2])), ANSWER_SECONDS).close()
    except (OSError, OverflowError):
        raise UserError(f"No Ray answers at {address}: look at --address, or start it: ray start --head.") from None


def run_ray(folder: Path, workers: int | None, address: str | None, say: Say, seconds: float) -> None:
    """Hand shards to actors until all are dealt with; a shard whose actor died is handed out again.

    Raises UserError where Ray is not installed or does not answer, and where shards are left that no actor would take.
    """
    ray = _ray()
    check_answers(address)
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {name: os.environ[name] for name in (FILES, ALLOWED) if name in os.environ}},
        )
    except Exception as error:
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise UserError(f"Ray cannot be started or reached ({said}): look at --address and its token.") from error
    try:
        _Driver(ray, folder.absolute(), workers, say, seconds).drive()
    finally:
        ray.shutdown()


def _ray() -> Any:
    # Whoever reaches a cluster's ports runs code on it, so that every connection has to show a token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'kvlab[ray]'.") from None
    return ray


class _Driver:
    """Knows which actor has which shard."""

    def __init__(self, ray: Any, folder: Path, workers: int | None, say: Say, seconds: float) -> None:
        self.ray, self.folder, self.say = ray, folder, say
        self.follower = Follower(folder, say)
        needs, there = _resources(ray.cluster_resources())
        count = min(there, workers or there)
        made = ray.remote(max_restarts=-1, **needs)(Evaluator)
        self.actors = [made.remote(str(folder), seconds) for _ in range(count)]
        measured = shards.there(folder)
        self.waiting = deque(shard.name for shard in shards.read_plan(folder).shards if shard.name not in measured)
        self.idle: list[Any] = []
        self.pending: dict[Any, tuple[Any, str]] = {}  # what is awaited, of which actor, for which shard
        say(f"{count} actors, one a {'GPU' if 'num_gpus' in needs else 'CPU'}")

    def drive(self) -> None:
        """Until nothing is awaited any more."""
        for actor in self.actors:
            self._await_ready(actor)
        while self.pending:
            done, _ = self.ray.wait(list(self.pending), num_returns=1, timeout=LOOK_SECONDS)
            for reference in done:
                self._settle(reference, *self.pending.pop(reference))
            if not self.follower.look().left:
                break
        self._end()

    def _settle(self, reference: Any, actor: Any, name: str) -> None:
        """What an actor did; one that died gets its next shard when it is there again."""
        exceptions = self.ray.exceptions
        try:
            outcome = self.ray.get(reference)
        except (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.NodeDiedError):
            self.say("An actor was lost: its shard is handed out again.")
            self._take_back(name)
            self._await_ready(actor)
            return
        except exceptions.RayTaskError as error:  # it refuses: another version, other weights, a full disk
            self._take_back(name)
            self.say(str(error.cause))
            return
        if outcome == "taken":  # a lease of a worker elsewhere, or of one that was lost with its node
            self.waiting.append(name)
            time.sleep(LOOK_SECONDS / 4)
        if outcome == "not here":  # its model does not fit there: others may have it
            self._take_back(name)
            return
        self._hand_out(actor)

    def _hand_out(self, actor: Any) -> None:
        if self.waiting:
            name = self.waiting.popleft()
            self.pending[actor.run.remote(name)] = actor, name
        else:
            self.idle.append(actor)

    def _take_back(self, name: str) -> None:
        if name:
            self.waiting.appendleft(name)
            if self.idle:
                self._hand_out(self.idle.pop())

    def _await_ready(self, actor: Any) -> None:
        self.pending[actor.ready.options(max_task_retries=-1).remote()] = actor, ""

    def _end(self) -> None:
        ends = [actor.end.remote() for actor in self.actors]
        self.ray.wait(ends, num_returns=len(ends), timeout=END_SECONDS)
        now = self.follower.look()
        if now.left:
            why = now.refusals[-1] if now.refusals else "No actor is left."
            raise UserError(f"{now.left} of {now.planned} shards are left. {why}")


def _resources(there: dict[str, float]) -> tuple[dict[str, int], int]:
    """What an actor asks for, and how many actors there is room for; raises UserError where there is none."""
    for resource, name in (("GPU", "num_gpus"), ("CPU", "num_cpus")):
        if there.get(resource, 0) >= 1:
            return {name: 1}, int(there[resource])
    raise UserError("The Ray cluster has neither GPUs nor CPUs: start a node that has.")
