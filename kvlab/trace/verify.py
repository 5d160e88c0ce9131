"""Verify run folders for `kvlab doctor RUNS`: every file is read and compared with its checksum."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open

from kvlab.common.liveness import is_being_written
from kvlab.core.errors import UserError
from kvlab.trace.catalogue import KILLED
from kvlab.trace.checksums import SUMS, state_of
from kvlab.trace.reader import Run
from kvlab.trace.record import FILE, read_record
from kvlab.trace.schema import EXACT_ARRAYS, TABLES
from kvlab.trace.table_parts import LIST, decodes

EXACT_KINDS = (np.float32, np.uint8)


class Finding(BaseModel):
    """Result for one run folder; `unchecked` says why its files have no checksums, if they have none."""

    model_config = ConfigDict(frozen=True)

    run: str
    state: str
    problems: tuple[str, ...]
    unchecked: str | None = None

    @property
    def verdict(self) -> str:
        """The problems, or that the run is sound or has no checksums."""
        return "\n".join(self.problems) or self.unchecked or "sound"


def verify_runs(path: Path) -> list[Finding]:
    """Verify the run in this folder, or every run in it; raises UserError if there is none."""
    path = Path(path)
    # A folder without its record is still recognisable as a run.
    runs = [
        folder
        for folder in (path, *sorted(path.glob("*")))
        if folder.is_dir() and ((folder / FILE).exists() or (folder / LIST).exists() or (folder / "arrays").is_dir())
    ]
    if not runs:
        raise UserError(f"There is no run in {path}: give a run folder, or the folder of runs.")
    return [verify_run(folder) for folder in ([path] if path in runs else runs)]


def verify_run(path: Path) -> Finding:
    """Verify one run folder: record, tables, arrays, and no unknown files."""
    try:
        record = read_record(path)
    except UserError as error:
        return Finding(run=path.name, state="unknown", problems=(str(error),))
    killed = record.status == "running" and not is_being_written(path, record.worker_pid, record.created)
    state = KILLED if killed else record.status
    try:
        run = Run(path, record)
    except UserError as error:
        return Finding(run=path.name, state=state, problems=(str(error),))
    undecodable = [
        f"{table}/{part.name} cannot be read as this kvlab's columns of {table}."
        for table in TABLES
        for part in run.parts[table]
        if not decodes(part, state_of(part), table)
    ]
    # Compare the array files with those that the record lists.
    listed = record.checksums
    names = {file.name for file in (path / "arrays").glob("*.safetensors")}
    expected = names if listed is None else {name.split("/")[1] for name in listed if name.startswith("arrays/")}
    problems = [*run.problems, *undecodable]
    problems += [f"arrays/{name} is missing." for name in sorted(expected - names)]
    problems += [f"arrays/{name} is not one of the files that this run wrote." for name in sorted(names - expected)]
    for name in sorted(names & expected):
        kinds: tuple[type[np.generic], ...] = EXACT_KINDS if name.split("-layer-")[0] in EXACT_ARRAYS else (np.float16,)
        if name == Path(SUMS).name:
            kinds = (np.uint8,)
        try:
            run.check_array(path / "arrays" / name)
            with safe_open(path / "arrays" / name, framework="numpy") as tensors:
                keys = tensors.keys()
                is_damaged = any(tensors.get_tensor(key).dtype not in kinds for key in keys)
        except (UserError, OSError, SafetensorError):
            is_damaged = True
        if is_damaged:
            problems.append(f"arrays/{name} is cut off or damaged.")
    return Finding(run=path.name, state=state, problems=tuple(problems), unchecked=run.unchecked)
