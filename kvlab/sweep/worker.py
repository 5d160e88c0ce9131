"""A worker: measures shards of a folder one after another until none is left, keeping its model between them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.common.memory_errors import is_out_of_memory
from kvlab.engine.environment import versions
from kvlab.evaluate.harness import Evaluation, prepare_evaluation
from kvlab.evaluate.results.store import ResultStore
from kvlab.evaluate.work import Unit
from kvlab.models.model_cache import held_model
from kvlab.sweep.leases import LEASE_SECONDS, Holder, Lease, Leases
from kvlab.sweep.planning import request_shards
from kvlab.sweep.shards import (
    CONTROL,
    Shard,
    SweepPlan,
    give_up,
    given_up,
    measured_names,
    read_plan,
    shard_path,
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
        self._earlier_rows: dict[str, dict[str, object]] = {}  # of the request, left here by `kvlab eval`
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
        settled = measured_names(self.folder)
        settled |= set(given_up(self.folder, {shard.name for shard in self.plan.shards}))
        left = [shard for shard in self.plan.shards if shard.name not in settled]
        left = [shard for shard in left if not loadable or shard.request not in self._load_errors]
        loaded = self._loaded[0] if self._loaded else None
        return sorted(left, key=lambda shard: shard.request != loaded)

    def run(self, shard: Shard) -> bool:
        """Measure a shard or give it up; False if another worker has it or its model cannot be loaded here.

        An error that concerns the shard alone is recorded next to the shards. Raises UserError if the weights differ
        from those that the sweep began with, or if the disk is full.
        """
        if shard.request in self._load_errors:
            return False
        lease = self._leases.claim(shard.name)
        if lease is None:
            return False
        self._lease = lease
        try:
            if shard_path(self.folder, shard.name).is_file():
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
        began = time.monotonic()
        try:
            rows = self._rows(evaluation, shard)
        except Exception as error:  # one shard's error must not end the sweep
            if not isinstance(error, UserError):
                traceback.print_exc()
            return self._give_up(shard, _message(error))
        write_shard(self.folder, shard.name, rows, self.holder.worker)
        self.say(f"{shard.label}, {shard.task}: {len(rows)} rows in {time.monotonic() - began:.1f} s")
        return True

    def _rows(self, evaluation: Evaluation, shard: Shard) -> list[dict[str, object]]:
        """All rows of the shard in the order of its prompts; rows that `kvlab eval` left here are reused."""
        units = evaluation.units[shard.start : shard.stop]
        keys = [unit.keys[shard.choice] for unit in units]
        rows = {key: self._earlier_rows[key] for key in keys if key in self._earlier_rows}
        missing = [
            Unit(unit.prompt, {shard.choice: key}) for unit, key in zip(units, keys, strict=True) if key not in rows
        ]
        for _, _, batch in evaluation.measured(missing):
            rows |= {str(row["key"]): row for row in batch}
        return [rows[key] for key in keys]

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
            self._load_errors[number] = f"{request.model} cannot be used here: {_message(error)}"
            self.say(self._load_errors[number])
            return None
        self._check_agreement(number, evaluation)
        keys = {key for unit in evaluation.units for key in unit.keys.values()}
        self._earlier_rows = ResultStore(self.folder).rows_of_parts(keys)
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
        self.say(f"{shard.label}, {shard.task}: given up. {reason}")
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


def _message(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first} (the worker's log has more)."
