"""A sweep as files: its plan, and a shard a Parquet file that is there whole or not at all. Torch-free.

    <folder>/sweep.json             the plan
    <folder>/shards/NAME.parquet    a shard that is measured
    <folder>/shards/_NAME.json      why a shard was given up
    <folder>/sweep/                 who works: leases, workers, logs

A folder of a sweep is a folder of results: whatever reads those reads this one, and `kvlab eval` goes on with it.
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
WORKER = b"kvlab.worker"  # in a shard's Parquet metadata: who measured it
LARGEST_PLAN_BYTES = 256 * 1024 * 1024


class Shard(BaseModel):
    """One method and budget on a block of prompts of one task and length, by one model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The hash of its rows' keys as they are before a worker adds the digest of the weights it loaded.
    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    request: int = Field(ge=0, description="which of the plan's requests")
    choice: int = Field(ge=0, description="which of the request's methods with their budgets, the full cache first")
    start: int = Field(ge=0, description="number of the first prompt in the request")
    stop: int = Field(ge=1, description="number after the last prompt")
    task: str
    length: int
    label: str
    cost: int = Field(ge=0, description="tokens of its prompts; the dearest go first")


class SweepPlan(BaseModel):
    """All shards in the order in which they are taken: a model after the other, of each the dearest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    versions: dict[str, str]
    requests: tuple[EvalRequest, ...]
    block: int
    shards: tuple[Shard, ...]

    @model_validator(mode="after")
    def _hangs_together(self) -> SweepPlan:
        for shard in self.shards:
            if shard.request >= len(self.requests):
                raise ValueError("a shard names no request")
            if shard.choice >= len(self.requests[shard.request].all_choices):
                raise ValueError("a shard names no method")
        return self


def write_plan(folder: Path, plan: SweepPlan) -> None:
    """Write the plan and make the folders; raises UserError where the folder cannot be used."""
    try:
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        replace_text(folder / PLAN, plan.model_dump_json(indent=1))
    except OSError as error:
        raise UserError(f"{folder} cannot be used for a sweep ({error.strerror}): choose another folder.") from error


def read_plan(folder: Path) -> SweepPlan:
    """Return the plan of a folder; raises UserError where there is none, or it cannot be read."""
    path = folder / PLAN
    if not path.is_file():
        raise UserError(f"{folder} holds no sweep: plan one with `kvlab sweep plan {folder}`.")
    try:
        return SweepPlan.model_validate_json(read_file(path, "The plan", LARGEST_PLAN_BYTES))
    except ValidationError as error:
        said = in_one_sentence(error)[:300].rstrip(".")
        raise UserError(f"The plan {path} is damaged ({said}): make it again with `kvlab sweep plan`.") from None


def shard_path(folder: Path, name: str) -> Path:
    """Where a shard's rows lie."""
    return folder / SHARDS / f"{name}.parquet"


def there(folder: Path) -> set[str]:
    """Names of the shards that are measured."""
    return {path.stem for path in (folder / SHARDS).glob("[!._]*.parquet")}


def write_shard(folder: Path, name: str, rows: Sequence[Mapping[str, object]], worker: str) -> None:
    """Write all rows of a shard in one step; raises UserError where the disk is full."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=ROWS.with_metadata({WORKER: worker}))
    replace_file(shard_path(folder, name), partial(pq.write_table, table))


def worker_of(folder: Path, name: str) -> str:
    """Who measured a shard."""
    return (pq.read_schema(shard_path(folder, name)).metadata or {}).get(WORKER, b"").decode()


def give_up(folder: Path, shard: Shard, sentence: str, worker: str) -> None:
    """Note beside the shards why one is not measured."""
    told = {"sentence": sentence, "shard": f"{shard.label}, {shard.task}", "worker": worker}
    replace_text(_note(folder, shard.name), json.dumps(told))


def given_up(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The sentence of each of these shards that was given up and is not there after all."""
    measured, wanted, told = there(folder), set(names), {}
    for path in (folder / SHARDS).glob("_*.json"):
        name = path.stem[1:]
        if name in wanted and name not in measured:
            try:
                note = json.loads(path.read_text(encoding="utf-8"))
                told[name] = f"{note['shard']}: {note['sentence']}"
            except (OSError, ValueError, KeyError, TypeError):
                told[name] = "It was given up; why cannot be read any more."
    return told


def try_again(folder: Path) -> list[str]:
    """Forget what was given up and remove shards that cannot be read; returns a sentence for each of these."""
    for path in (folder / SHARDS).glob("_*.json"):
        path.unlink(missing_ok=True)
    damaged = []
    for name in sorted(there(folder)):
        try:
            pq.read_metadata(shard_path(folder, name))
        except (pa.ArrowInvalid, OSError):
            shard_path(folder, name).unlink(missing_ok=True)
            damaged.append(f"{shard_path(folder, name)} was damaged: it is measured again.")
    return damaged


def sweep_rows(folder: Path) -> pd.DataFrame:
    """The rows of a sweep's shards in the order in which one process would have measured them.

    Raises UserError where the folder holds no plan or no shard.
    """
    plan, measured = read_plan(folder), there(folder)
    found = []
    for shard in plan.shards:
        if shard.name in measured:
            frame = pq.read_table(shard_path(folder, shard.name), schema=ROWS).to_pandas()
            of = {"_request": shard.request, "_prompt": range(shard.start, shard.stop), "_choice": shard.choice}
            found.append(frame.assign(**of))
    if not found:
        raise UserError(f"{folder} holds no shard yet: start workers with `kvlab sweep run {folder}`.")
    places = ["_request", "_prompt", "_choice"]
    rows = pd.concat(found, ignore_index=True).sort_values(places, ignore_index=True)
    return rows.drop(columns=places).drop_duplicates("key", ignore_index=True)


def _note(folder: Path, name: str) -> Path:
    return folder / SHARDS / f"_{name}.json"
