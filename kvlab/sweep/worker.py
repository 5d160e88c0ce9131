"""A worker: measures shards of a folder one after another until none is left, keeping its model between them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from kvlab.common.atomic_write import replace_text
from kvlab.core.errors import UserError, is_out_of_memory
from kvlab.engine.environment import versions
from kvlab.evaluate.harness import Evaluation, prepare_evaluation
from kvlab.models.load import held_model
from kvlab.sweep.leases import LEASE_SECONDS, Holder, Lease, Leases
from kvlab.sweep.plan import Shard, SweepPlan
from kvlab.sweep.planning import request_shards
from kvlab.sweep.shard_run import ShardRun, message_of
from kvlab.sweep.shards import (
    CONTROL,
    Row,
    earlier_rows,
    give_up,
    incomplete_rows,
    read_plan,
    settled_shards,
    write_incomplete,
    write_shard,
)
from kvlab.sweep.status import DONE, STOPPED, Say, WorkerFile

MAX_LOST = 3  # workers that may be lost with one shard before it is given up
WAIT_SECONDS = 1.0


class Worker:
    """One process of a sweep.

    Raises UserError, and records it in the folder, for an unreadable plan and for a plan of another version of kvlab.
    """

    def __init__(self, folder: Path, seconds: float = LEASE_SECONDS, say: Say = lambda line: None) -> None:
        self.folder, self.say = folder.absolute(), say
        self.plan = read_plan(self.folder)
        self.holder = Holder.this_process()
        self.file = WorkerFile(self.folder, self.holder, seconds)
        self._leases = Leases(self.folder / CONTROL / "leases", self.holder, seconds)
        self._lease: Lease | None = None
        self._loaded: tuple[int, Evaluation] | None = None  # the number of a request, on its loaded model
        self._earlier_rows: dict[str, Row] = {}  # of the request, left here by `kvlab eval` or an earlier plan
        self._length = 0  # of the prompts measured last
        self._load_errors: dict[int, str] = {}  # by number of the request
        self._ended = threading.Event()
        try:
            check_versions(self.plan, self.folder)
        except UserError as error:
            self.file.end(str(error))
            raise
        threading.Thread(target=self._beat, args=(min(15.0, seconds / 4),), daemon=True).start()

    def work(self) -> None:
        """Measure shards until none is left that this worker could measure.

        Raises UserError if models could not be loaded here and their shards are still missing.
        """
        reason = STOPPED
        try:
            while left := self._left():
                if not any(self.run(shard) for shard in left):
                    time.sleep(WAIT_SECONDS)
            reason = " ".join(self._load_errors.values()) if self._left(loadable=False) else DONE
            if reason != DONE:
                raise UserError(reason)
        except Exception as error:
            reason = str(error)
            raise
        finally:
            self.end(reason)

    def _left(self, loadable: bool = True) -> list[Shard]:
        """Shards neither measured nor given up, those of the loaded model first; `loadable`: skip models that fail."""
        done = settled_shards(self.folder, self.plan.shards).names
        left = [shard for shard in self.plan.shards if shard.name not in done]
        left = [shard for shard in left if not loadable or shard.request not in self._load_errors]
        loaded = self._loaded[0] if self._loaded else None
        return sorted(left, key=lambda shard: shard.request != loaded)

    def run(self, shard: Shard) -> bool:
        """Measure a shard or give it up; False if another worker has it or its model cannot be loaded here.

        Errors of methods are recorded next to the shards, and the rows of the other methods are kept. Raises UserError
        if the weights differ from those that the sweep began with, or if the disk is full.
        """
        if shard.request in self._load_errors:
            return False
        lease = self._leases.claim(shard.name)
        if lease is None:
            return False
        self._lease = lease
        try:
            if settled_shards(self.folder, [shard]).names:
                return True
            if lease.tries > MAX_LOST:
                reason = f"{MAX_LOST} workers were lost while they measured it (often: not enough memory)."
                return self._give_up(shard, reason)
            return self._measure(shard)
        finally:
            self.release()

    def release(self) -> None:
        """Let other workers take the current shard, for example before this worker is stopped."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def end(self, reason: str = DONE) -> None:
        """Record in the folder that this worker ended."""
        self._ended.set()
        self.release()
        self.file.end(reason)

    def _measure(self, shard: Shard) -> bool:
        evaluation = self._evaluation(shard.request)
        if evaluation is None:
            return False
        began, backoff = time.monotonic(), evaluation.maker.backoff
        if shard.length != self._length:
            backoff.most, self._length = None, shard.length  # more rows of shorter prompts may fit
        known = self._earlier_rows | incomplete_rows(self.folder, shard.name)
        run = ShardRun(evaluation, shard, known, partial(self._save, shard, began))
        run.measure()
        rows = run.rows
        if run.is_complete:
            write_shard(self.folder, shard.name, rows, self.holder.worker)
        elif rows:
            write_incomplete(self.folder, shard.name, rows, self.holder.worker)
        self.say(f"{shard.label}: {len(rows)} rows in {time.monotonic() - began:.1f} s")
        if run.is_complete:
            return True
        if not rows and len(set(run.reasons.values())) == 1:  # no method's own fault
            return self._give_up(shard, *set(run.reasons.values()))
        return self._give_up_methods(shard, run.reasons)

    def _save(self, shard: Shard, began: float, rows: list[Row]) -> None:
        """Write what was measured of a shard; a full disk is reported once the shard is written."""
        with contextlib.suppress(OSError, UserError):
            write_incomplete(self.folder, shard.name, rows, self.holder.worker)
            self.say(f"{shard.label}: {len(rows)} rows so far, in {time.monotonic() - began:.0f} s")

    def _evaluation(self, number: int) -> Evaluation | None:
        """The request on its loaded model; None if this worker cannot load it."""
        if self._loaded and self._loaded[0] == number:
            return self._loaded[1]
        self._loaded = None
        request = self.plan.requests[number]
        try:
            evaluation = prepare_evaluation(request, held_model(request))
        except Exception as error:
            if not isinstance(error, UserError) and not is_out_of_memory(error):
                raise
            self._load_errors[number] = f"{request.model} cannot be used here: {message_of(error)}"
            self.say(self._load_errors[number])
            return None
        self._check_agreement(number, evaluation)
        keys = {key for unit in evaluation.units for key in unit.keys.values()}
        self._earlier_rows = earlier_rows(self.folder, keys, self.plan)
        self._loaded = number, evaluation
        return evaluation

    def _check_agreement(self, number: int, evaluation: Evaluation) -> None:
        """Raise UserError if this worker would measure something else than planned, or than other workers measure."""
        request = self.plan.requests[number]
        prompts = [unit.prompt for unit in evaluation.units]
        chat = None if evaluation.chat is None else evaluation.chat.settings
        names = {shard.name for shard in request_shards(request, number, prompts, chat, self.plan.block)}
        if names != {shard.name for shard in self.plan.shards if shard.request == number}:
            raise UserError(
                f"The prompts or settings of {request.model} are not those that {self.folder} was planned with (a file "
                "or a method has changed): plan the sweep again."
            )
        model = hashlib.sha256(f"{request.model}@{request.revision}@{request.load_in}".encode()).hexdigest()[:16]
        digest = evaluation.maker.model_digest
        first = _pin_digest(self.folder / CONTROL / "models" / f"{model}.json", digest, self.holder.worker)
        if first != digest:
            raise UserError(
                f"The weights of {request.model} here ({digest}) are not those that the sweep began with ({first}): "
                "another checkpoint or --dtype; give all workers the same, or choose another folder."
            )

    def _give_up(self, shard: Shard, reason: str) -> bool:
        give_up(self.folder, shard, reason, self.holder.worker)
        self.say(f"{shard.label}: given up. {reason}")
        return True

    def _give_up_methods(self, shard: Shard, reasons: Mapping[str, str]) -> bool:
        give_up(self.folder, shard, "", self.holder.worker, reasons)
        for label, reason in reasons.items():
            self.say(f"{label}, {shard.label}: given up. {reason}")
        return True

    def _beat(self, every: float) -> None:
        while not self._ended.wait(every):
            self.file.beat()
            if (lease := self._lease) is not None:
                lease.renew()


def check_versions(plan: SweepPlan, folder: Path) -> None:
    """Raise UserError if a package or plug-in that could change a number is not the version planned with.

    Builds of one version for other devices count as equal, and so do Python versions.
    """
    installed = versions()
    for name in sorted((plan.versions.keys() | installed.keys()) - {"python"}):
        planned, here = plan.versions.get(name), installed.get(name)
        if (planned or "").split("+")[0] != (here or "").split("+")[0]:
            raise UserError(
                f"This worker has {name} {here or 'not at all'}, and {folder} was planned with {planned or 'none'}: "
                "give all workers the same version, or plan the sweep again."
            )


def _pin_digest(path: Path, digest: str, worker: str) -> str:
    """The digest that the first worker recorded in this file, which may be this worker."""
    temporary = path.with_name(f".{path.name}.{worker}")
    replace_text(temporary, json.dumps({"digest": digest, "by": worker, "at": datetime.now(UTC).isoformat()}))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        return str(json.loads(path.read_text(encoding="utf-8"))["digest"])
    finally:
        temporary.unlink(missing_ok=True)
