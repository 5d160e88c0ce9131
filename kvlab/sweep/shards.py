"""A sweep's files: the plan, and one Parquet file per measured shard, written atomically. Torch-free.

    <folder>/sweep.json             the plan
    <folder>/shards/NAME.parquet    a measured shard
    <folder>/shards/_NAME.json      why a shard was given up
    <folder>/sweep/                 leases, workers, logs

A sweep's folder is also a results folder, which `kvlab eval` can read and continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvlab.common.atomic_write import replace_file, replace_text
from kvlab.common.errors import UserError
from kvlab.common.validation import in_one_sentence, read_file
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.results.rows import ROWS
from kvlab.evaluate.results.store import SHARDS

PLAN = "sweep.json"
CONTROL = "sweep"
WORKER = b"kvlab.worker"  # key in a shard's Parquet metadata: the worker that measured it
LARGEST_PLAN_BYTES = 256 * 1024 * 1024


class Shard(BaseModel):
    """One method and budget on a block of prompts of one task and length, with one model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Hash of its rows' keys without the digest of the weights, which only a worker knows.
    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    request: int = Field(ge=0, description="index of the plan's request")
    choice: int = Field(ge=0, description="index of the request's choice of method and budget, the full cache first")
    start: int = Field(ge=0, description="index of the first prompt in the request")
    stop: int = Field(ge=1, description="index after the last prompt")
    task: str
    length: int
    label: str
    cost: int = Field(ge=0, description="tokens of its prompts; the largest go first")


class SweepPlan(BaseModel):
    """All shards in the order in which workers take them: model by model, the most expensive first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    versions: dict[str, str]
    requests: tuple[EvalRequest, ...]
    block: int
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _check_indices(self) -> SweepPlan:
        for shard in self.shards:
            if shard.request >= len(self.requests):
                raise ValueError("a shard names no request")
            if shard.choice >= len(self.requests[shard.request].all_choices):
                raise ValueError("a shard names no method")
        return self


def write_plan(folder: Path, plan: SweepPlan) -> None:
    """Write the plan and create the folders; raises UserError if the folder cannot be used."""
    try:
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        replace_text(folder / PLAN, plan.model_dump_json(indent=1))
    except OSError as error:
        raise UserError(f"{folder} cannot be used for a sweep ({error.strerror}): choose another folder.") from error


def read_plan(folder: Path) -> SweepPlan:
    """Return the plan of a folder; raises UserError if there is none or it cannot be read."""
    path = folder / PLAN
    if not path.is_file():
        raise UserError(f"{folder} holds no sweep: plan one with `kvlab sweep plan {folder}`.")
    try:
        return SweepPlan.model_validate_json(read_file(path, "The plan", LARGEST_PLAN_BYTES))
    except ValidationError as error:
        message = in_one_sentence(error)[:300].rstrip(".")
        raise UserError(f"The plan {path} is damaged ({message}): create it again with `kvlab sweep plan`.") from None


def shard_path(folder: Path, name: str) -> Path:
    """The file of a shard's rows."""
    return folder / SHARDS / f"{name}.parquet"


def measured_names(folder: Path) -> set[str]:
    """Names of the measured shards."""
    return {path.stem for path in (folder / SHARDS).glob("[!._]*.parquet")}


def write_shard(folder: Path, name: str, rows: Sequence[Mapping[str, object]], worker: str) -> None:
    """Write all rows of a shard atomically; raises UserError if the disk is full."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=ROWS.with_metadata({WORKER: worker}))
    replace_file(shard_path(folder, name), partial(pq.write_table, table))


def worker_of(folder: Path, name: str) -> str:
    """The worker that measured a shard."""
    return (pq.read_schema(shard_path(folder, name)).metadata or {}).get(WORKER, b"").decode()


def give_up(folder: Path, shard: Shard, reason: str, worker: str) -> None:
    """Record next to the shards why one is not measured."""
    note = {"sentence": reason, "shard": f"{shard.label}, {shard.task}", "worker": worker}
    replace_text(folder / SHARDS / f"_{shard.name}.json", json.dumps(note))


def given_up(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Why each of these shards was given up, by name; without those that were measured after all."""
    names, reasons = set(names) - measured_names(folder), {}
    for path in (folder / SHARDS).glob("_*.json"):
        if (name := path.stem[1:]) in names:
            try:
                note = json.loads(path.read_text(encoding="utf-8"))
                reasons[name] = f"{note['shard']}: {note['sentence']}"
            except (OSError, ValueError, KeyError, TypeError):
                reasons[name] = "It was given up; the reason can no longer be read."
    return reasons


def try_again(folder: Path) -> list[str]:
    """Remove the notes of shards that were given up, and unreadable shards; return a message for each of the latter."""
    for path in (folder / SHARDS).glob("_*.json"):
        path.unlink(missing_ok=True)
    damaged = []
    for path in sorted(shard_path(folder, name) for name in measured_names(folder)):
        try:
            pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError):
            path.unlink(missing_ok=True)
            damaged.append(f"{path} was damaged: it is measured again.")
    return damaged


def sweep_rows(folder: Path) -> pd.DataFrame:
    """All measured rows, in the order in which one process would have measured them.

    Raises UserError if the folder holds no plan or no measured shard.
    """
    plan, measured = read_plan(folder), measured_names(folder)
    frames = []
    for shard in plan.shards:
        if shard.name in measured:
            frame = pq.read_table(shard_path(folder, shard.name), schema=ROWS).to_pandas()
            prompts = range(shard.start, shard.stop)
            frames.append(frame.assign(_request=shard.request, _prompt=prompts, _choice=shard.choice))
    if not frames:
        raise UserError(f"{folder} holds no shard yet: start workers with `kvlab sweep run {folder}`.")
    order = ["_request", "_prompt", "_choice"]
    rows = pd.concat(frames, ignore_index=True).sort_values(order, ignore_index=True)
    return rows.drop(columns=order).drop_duplicates("key", ignore_index=True)
