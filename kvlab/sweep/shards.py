"""A sweep's files: the plan, and one Parquet file per measured shard, written atomically. Torch-free.

    <folder>/sweep.json                        the plan
    <folder>/shards/NAME.parquet               a measured shard
    <folder>/shards/NAME-incomplete.parquet    rows of a shard that is being measured, or whose other rows failed
    <folder>/shards/_NAME.json                 why a shard, or a method on it, was given up
    <folder>/sweep/                            leases, workers, logs

A sweep's folder is also a results folder, which `kvlab eval` can read and continue. Files of shards that the plan does
not name, such as those of an earlier plan, are kept: their rows are found by key.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter, ValidationError

from kvlab.common.atomic_write import replace_file, replace_text
from kvlab.core.errors import UserError
from kvlab.core.validation import in_one_sentence, read_file
from kvlab.evaluate.results.rows import ROWS
from kvlab.evaluate.results.store import SHARDS, ResultStore
from kvlab.sweep.plan import PlanOfFormat1, Shard, SweepPlan

PLAN = "sweep.json"
CONTROL = "sweep"
WORKER = b"kvlab.worker"  # key in a shard's Parquet metadata: the worker that measured it
INCOMPLETE = "-incomplete"
LARGEST_PLAN_BYTES = 256 * 1024 * 1024
UNREADABLE = "It was given up; the reason can no longer be read."
Row = Mapping[str, object]

_PLANS: TypeAdapter[SweepPlan | PlanOfFormat1] = TypeAdapter(
    Annotated[SweepPlan | PlanOfFormat1, Field(discriminator="format")]
)


def write_plan(folder: Path, plan: SweepPlan) -> None:
    """Write the plan and create the folders; raises UserError if the folder cannot be used."""
    try:
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        replace_text(folder / PLAN, plan.model_dump_json(indent=1))
    except OSError as error:
        raise UserError(f"{folder} cannot be used for a sweep ({error.strerror}): choose another folder.") from error


def read_plan(folder: Path) -> SweepPlan:
    """Return the plan of a folder; a plan of format 1 is joined into the current format.

    Raises UserError if there is none or it cannot be read.
    """
    path = folder / PLAN
    if not path.is_file():
        raise UserError(f"{folder} holds no sweep: plan one with `kvlab sweep plan {folder}`.")
    text = read_file(path, "The plan", LARGEST_PLAN_BYTES)
    try:
        plan = _PLANS.validate_json(text)
        return plan.joined() if isinstance(plan, PlanOfFormat1) else plan
    except ValidationError as error:
        message = in_one_sentence(error)
    except UserError as error:
        message = str(error)
    raise UserError(
        f"The plan {path} is damaged ({message[:300].rstrip('.')}): create it again with `kvlab sweep plan`."
    )


def shard_path(folder: Path, name: str) -> Path:
    """The file of a shard's rows."""
    return folder / SHARDS / f"{name}.parquet"


def incomplete_path(folder: Path, name: str) -> Path:
    """The file of the rows of a shard that lacks others."""
    return shard_path(folder, f"{name}{INCOMPLETE}")


def measured_names(folder: Path) -> set[str]:
    """Names of the files of rows, without those that lack rows."""
    names = {path.stem for path in (folder / SHARDS).glob("[!._]*.parquet")}
    return {name for name in names if not name.endswith(INCOMPLETE)}


def write_shard(folder: Path, name: str, rows: Sequence[Row], worker: str) -> None:
    """Write all rows of a shard atomically; raises UserError if the disk is full."""
    _write(shard_path(folder, name), rows, worker)
    incomplete_path(folder, name).unlink(missing_ok=True)


def write_incomplete(folder: Path, name: str, rows: Sequence[Row], worker: str) -> None:
    """Write those rows of a shard that were measured so far; raises UserError if the disk is full."""
    _write(incomplete_path(folder, name), rows, worker)


def _write(path: Path, rows: Sequence[Row], worker: str) -> None:
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=ROWS.with_metadata({WORKER: worker}))
    replace_file(path, partial(pq.write_table, table))


def incomplete_rows(folder: Path, name: str) -> dict[str, Row]:
    """The rows, by key, of a shard that was not measured to the end."""
    return _rows_by_key(incomplete_path(folder, name))


def earlier_rows(folder: Path, keys: Collection[str], plan: SweepPlan) -> dict[str, Row]:
    """The rows with these `keys`, by key, that `kvlab eval` or a sweep with another plan left in the folder."""
    planned = {shard.name for shard in plan.shards}
    rows: dict[str, Row] = dict(ResultStore(folder).rows_of_parts(keys))
    for path in sorted((folder / SHARDS).glob("[!._]*.parquet")):
        if path.stem.removesuffix(INCOMPLETE) not in planned:
            rows |= {key: row for key, row in _rows_by_key(path).items() if key in keys}
    return rows


def _rows_by_key(path: Path) -> dict[str, Row]:
    """The rows of a file by key; none if it is missing or cannot be read."""
    try:
        return {row["key"]: row for row in pq.read_table(path, schema=ROWS).to_pylist()}
    except (pa.ArrowInvalid, OSError):
        return {}


def give_up(folder: Path, shard: Shard, reason: str, worker: str, failed: Mapping[str, str] | None = None) -> None:
    """Record next to the shards why one is not measured, or with `failed` which methods are not, and why."""
    note = {"sentence": reason, "shard": shard.label, "worker": worker, "failed": dict(failed or {})}
    replace_text(folder / SHARDS / f"_{shard.name}.json", json.dumps(note))


@dataclass(frozen=True)
class Settled:
    """Shards that no worker is to measure: those measured, and those given up.

    `failed` are measured shards without the rows of some methods. The reasons of `given_up` and `failed` are by shard
    name, a sentence for each method.
    """

    measured: set[str] = field(default_factory=set)
    failed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    given_up: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Names of all these shards."""
        return self.measured | self.given_up.keys()


def settled_shards(folder: Path, shards: Iterable[Shard]) -> Settled:
    """Which of these shards are measured or given up."""
    files, found = measured_names(folder), Settled()
    notes = {path.stem[1:] for path in (folder / SHARDS).glob("_*.json")}
    for shard in shards:
        if shard.name in files:
            found.measured.add(shard.name)
        elif shard.name in notes:
            by_method, reasons = _read_note(folder, shard.name)
            _add(found, shard.name, by_method and incomplete_path(folder, shard.name).is_file(), reasons)
        elif shard.format_1 and all(name in files or name in notes for name in shard.format_1):
            missing = [name for name in shard.format_1 if name not in files]
            reasons = tuple(reason for name in missing for reason in _read_note(folder, name)[1])
            _add(found, shard.name, len(missing) < len(shard.format_1), reasons)
    return found


def _add(found: Settled, name: str, has_rows: bool, reasons: tuple[str, ...]) -> None:
    if not has_rows:
        found.given_up[name] = reasons
        return
    found.measured.add(name)
    if reasons:
        found.failed[name] = reasons


def _read_note(folder: Path, name: str) -> tuple[bool, tuple[str, ...]]:
    """Whether single methods were given up and not the whole shard, and the reasons."""
    try:
        note = json.loads((folder / SHARDS / f"_{name}.json").read_text(encoding="utf-8"))
        if failed := note.get("failed"):
            return True, tuple(f"{label}, {note['shard']}: {reason}" for label, reason in failed.items())
        return False, (f"{note['shard']}: {note['sentence']}",)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False, (UNREADABLE,)


def try_again(folder: Path) -> list[str]:
    """Remove the notes of shards and methods that were given up, and unreadable shards.

    Returns a message for each unreadable shard.
    """
    for path in (folder / SHARDS).glob("_*.json"):
        path.unlink(missing_ok=True)
    damaged = []
    for path in sorted((folder / SHARDS).glob("[!._]*.parquet")):
        try:
            pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError):
            path.unlink(missing_ok=True)
            damaged.append(f"{path} was damaged: it is measured again.")
    return damaged


def sweep_rows(folder: Path) -> pd.DataFrame:
    """All measured rows, in the order in which one process would have measured them.

    Raises UserError if the folder holds no plan or no measured row.
    """
    plan = read_plan(folder)
    frames = [frame for shard in plan.shards for frame in _frames(folder, plan, shard)]
    if not frames:
        raise UserError(f"{folder} holds no rows yet: start workers with `kvlab sweep run {folder}`.")
    order = ["_request", "_start", "_place"]
    rows = pd.concat(frames, ignore_index=True).sort_values(order, ignore_index=True)
    return rows.drop(columns=order).drop_duplicates("key", ignore_index=True)


def _frames(folder: Path, plan: SweepPlan, shard: Shard) -> list[pd.DataFrame]:
    """A shard's rows from its file, or else from those of format 1, with three columns that state their order."""
    choices, place = len(plan.choices(shard)), {"_request": shard.request, "_start": shard.start}
    for path in (shard_path(folder, shard.name), incomplete_path(folder, shard.name)):
        if path.is_file():
            frame = pq.read_table(path, schema=ROWS).to_pandas()
            return [frame.assign(**place, _place=np.arange(len(frame)))]
    frames = []
    for choice, name in enumerate(shard.format_1):
        if (path := shard_path(folder, name)).is_file():
            frame = pq.read_table(path, schema=ROWS).to_pandas()
            frames.append(frame.assign(**place, _place=np.arange(len(frame)) * choices + choice))
    return frames
