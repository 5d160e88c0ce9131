"""A worker: takes shards of a folder one after another until none is left, and keeps its model from one to the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kvlab.common.atomic_write import replace_text
from kvlab.common.errors import UserError
from kvlab.engine.environment import versions
from kvlab.engine.out_of_memory import is_out_of_memory
from kvlab.evaluate.harness import Evaluation, prepare_evaluation
from kvlab.evaluate.results.store import ResultStore
from kvlab.evaluate.work import Unit
from kvlab.models.model_cache import held_model
from kvlab.sweep.leases import LEASE_SECONDS, Holder, Lease, Leases
from kvlab.sweep.planning import request_shards
from kvlab.sweep.roster import DONE, STOPPED, Entry
from kvlab.sweep.shards import CONTROL, Shard, SweepPlan, give_up, given_up, read_plan, shard_path, there, write_shard

Outcome = Literal["done", "there", "taken", "given up", "not here"]
MOST_LOST = 3  # workers that may be lost with one shard before it is left alone
WAIT_SECONDS = 1.0


class Worker:
    """One process that takes part in a sweep.

    Raises UserError, and says so in the folder, for a plan that cannot be read and one of another version of kvlab.
    """

    def __init__(
        self, folder: Path, seconds: float = LEASE_SECONDS, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.folder, self.say = folder.absolute(), say
        self.plan = read_plan(self.folder)
        self.holder = Holder.this_process()
        self.entry = Entry(self.folder, self.holder, seconds)
        self._leases = Leases(self.folder / CONTROL / "leases", self.holder, seconds)
        self._lease: Lease | None = None
        self._held: tuple[int, Evaluation] | None = None
        self._earlier: dict[str, dict[str, object]] = {}
        self._unable: dict[int, str] = {}  # requests whose model this worker cannot load, and why
        self._ended = threading.Event()
        try:
            check_versions(self.plan, self.folder)
        except UserError as error:
            self.entry.end(str(error))
            raise
        threading.Thread(target=self._beat, args=(min(15.0, seconds / 4),), daemon=True).start()

    def work(self) -> None:
        """Take shards until none is left that this worker could measure and no other has.

        Raises UserError where models could not be loaded here and their shards are still missing.
        """
        reason = STOPPED
        try:
            while left := self.left():
                if not any(self.run(shard) not in ("taken", "not here") for shard in left):
                    time.sleep(WAIT_SECONDS)
            reason = " ".join(self._unable.values()) if self.left(able=False) else DONE
            if reason != DONE:
                raise UserError(reason)
        except Exception as error:
            reason = str(error)
            raise
        finally:
            self.end(reason)

    def left(self, able: bool = True) -> list[Shard]:
        """Shards that are neither there nor given up, those of the model at hand first; `able`: no others' models."""
        names = {shard.name for shard in self.plan.shards}
        gone = there(self.folder)
        gone |= set(given_up(self.folder, names))
        held = self._held[0] if self._held else None
        left = [shard for shard in self.plan.shards if shard.name not in gone]
        left = [shard for shard in left if not able or shard.request not in self._unable]
        return sorted(left, key=lambda shard: shard.request != held)

    def run(self, shard: Shard) -> Outcome:
        """Measure one shard, unless it is there, another worker has it, or this one cannot load its model.

        What goes wrong with the shard alone is noted beside the shards, and the worker goes on.
        Raises UserError where the weights are others than those the sweep began with, or the disk is full.
        """
        if shard.request in self._unable:
            return "not here"
        lease = self._leases.claim(shard.name)
        if lease is None:
            return "taken"
        self._lease = lease
        try:
            if shard_path(self.folder, shard.name).is_file():
                return "there"
            if lease.tries > MOST_LOST:
                said = f"{MOST_LOST} workers were lost while they measured it (often: not enough memory)."
                return self._give_up(shard, said)
            return self._measure(shard)
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Let others have the shard this worker is at, as when it is about to be stopped."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.give_back()

    def end(self, reason: str = DONE) -> None:
        """Say in the folder that this worker ended."""
        self._ended.set()
        self.give_back()
        self.entry.end(reason)

    def _measure(self, shard: Shard) -> Outcome:
        evaluation = self._evaluation(shard.request)
        if evaluation is None:
            return "not here"
        began = time.monotonic()
        try:
            rows = self._rows(evaluation, shard)
        except Exception as error:  # the rest of the sweep must not fall with one shard
            if not isinstance(error, UserError):
                traceback.print_exc()
            return self._give_up(shard, _sentence(error))
        write_shard(self.folder, shard.name, rows, self.holder.worker)
        self.say(f"{shard.label}, {shard.task}: {len(rows)} rows in {time.monotonic() - began:.1f} s")
        return "done"

    def _rows(self, evaluation: Evaluation, shard: Shard) -> list[dict[str, object]]:
        """All rows of the shard in the order of its prompts; those that a single process left here are taken over."""
        units = evaluation.units[shard.start : shard.stop]
        keys = [unit.keys[shard.choice] for unit in units]
        found = {key: self._earlier[key] for key in keys if key in self._earlier}
        asked = [Unit(unit.prompt, {shard.choice: key}) for unit, key in zip(units, keys, strict=True)]
        for _, _, rows in evaluation.measured([unit for unit in asked if unit.keys[shard.choice] not in found]):
            found |= {str(row["key"]): row for row in rows}
        return [found[key] for key in keys]

    def _evaluation(self, number: int) -> Evaluation | None:
        """The request on its loaded model; None where this worker cannot load it, which it says once."""
        if self._held and self._held[0] == number:
            return self._held[1]
        self._held = None
        request = self.plan.requests[number]
        try:
            evaluation = prepare_evaluation(request, held_model(request))
        except Exception as error:
            if not isinstance(error, UserError) and not is_out_of_memory(error):
                raise
            self._unable[number] = f"{request.model} cannot be used here: {_sentence(error)}"
            self.say(self._unable[number])
            return None
        self._agree(number, evaluation)
        keys = {key for unit in evaluation.units for key in unit.keys.values()}
        self._earlier = ResultStore(self.folder).rows_of_parts(keys)
        self._held = number, evaluation
        return evaluation

    def _agree(self, number: int, evaluation: Evaluation) -> None:
        """Raises UserError where this worker would measure something else than was planned, or others measured."""
        request = self.plan.requests[number]
        prompts = [unit.prompt for unit in evaluation.units]
        chat = None if evaluation.chat is None else evaluation.chat.settings
        mine = {shard.name for shard in request_shards(request, number, prompts, chat, self.plan.block)}
        if mine != {shard.name for shard in self.plan.shards if shard.request == number}:
            raise UserError(
                f"The prompts or settings of {request.model} are not those that {self.folder} was planned with (a file "
                "or a method has changed): plan the sweep again."
            )
        named = hashlib.sha256(f"{request.model}@{request.revision}@{request.load_in}".encode()).hexdigest()[:16]
        pinned = self.folder / CONTROL / "models" / f"{named}.json"
        digest = evaluation.maker.model_digest
        first = _first_to_say(pinned, digest, self.holder.worker)
        if first != digest:
            raise UserError(
                f"The weights of {request.model} here ({digest}) are not those that the sweep began with ({first}): "
                "another checkpoint or --dtype; give all workers the same, or choose another folder."
            )

    def _give_up(self, shard: Shard, sentence: str) -> Outcome:
        give_up(self.folder, shard, sentence, self.holder.worker)
        self.say(f"{shard.label}, {shard.task}: given up. {sentence}")
        return "given up"

    def _beat(self, every: float) -> None:
        while not self._ended.wait(every):
            self.entry.beat()
            if (lease := self._lease) is not None:
                lease.renew()


def check_versions(plan: SweepPlan, folder: Path) -> None:
    """Raises UserError where a package or plug-in that could change a number is not the one the sweep was planned with.

    Builds of one version for other devices are the same, and so are Pythons.
    """
    here = versions()
    for name in sorted((plan.versions.keys() | here.keys()) - {"python"}):
        planned, mine = plan.versions.get(name), here.get(name)
        if (planned or "").split("+")[0] != (mine or "").split("+")[0]:
            raise UserError(
                f"This worker has {name} {mine or 'not at all'}, and {folder} was planned with {planned or 'none'}: "
                "give all workers the same version, or plan the sweep again."
            )


def _first_to_say(path: Path, said: str, worker: str) -> str:
    """What the first worker said in this file, which it makes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f".{path.name}.{worker}")
    replace_text(mine, json.dumps({"digest": said, "by": worker, "at": datetime.now(UTC).isoformat()}))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(mine, path)
        return str(json.loads(path.read_text(encoding="utf-8"))["digest"])
    finally:
        mine.unlink(missing_ok=True)


def _sentence(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first} (the worker's log has more)."
