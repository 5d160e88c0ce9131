"""Find the sound table parts of a run folder, and check that tables and arrays match the run's record."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from kvlab.trace.checksums import REMEMBERED, State, known_checksum, state_of
from kvlab.trace.schema import TABLES, RunRecord

LIST = "parts.json"
LISTED = TypeAdapter(dict[str, list[int]])
PART = re.compile(r"part-\d{5}\.parquet")
LEFT_OUT = "so its rows are left out; the other parts were read."


def sound_parts(path: Path, record: RunRecord) -> tuple[dict[str, list[Path]], list[str]]:
    """The unchanged parts of each table, in order, and a sentence per damaged or unknown part.

    Parts with checksums are verified by them; others are decoded once.
    """
    fallback = "so a missing part cannot be detected; the existing parts were read."
    if record.checksums is not None and LIST in record.checksums:
        fallback = "but run.json also lists the parts, and they were read."
    # Rows of each part from the writer's list; None if it is missing or damaged.
    file = path / LIST
    rows: dict[str, list[int]] | None = None
    problems: list[str] = []
    try:
        data = file.read_bytes()
    except OSError:
        has_parts = any(path.glob("*/part-*.parquet"))
        is_listed = has_parts if record.checksums is None else LIST in record.checksums
        if is_listed and record.status != "running":
            problems.append(f"{LIST} is missing, {fallback}")
    else:
        sums = record.checksums
        if sums is None or known_checksum(file, state_of(file)) == sums.get(LIST):
            with suppress(ValidationError):
                rows = LISTED.validate_json(data)
        if rows is None:
            problems.append(f"{LIST} is cut off or damaged, {fallback}")
    parts: dict[str, list[Path]] = {}
    for table in TABLES:
        found = {part.name: part for part in sorted((path / table).glob("*.parquet"))}
        names = [] if rows is None else [f"part-{number:05d}.parquet" for number in range(len(rows.get(table, [])))]
        if record.checksums is not None:
            names = sorted(name.split("/")[1] for name in record.checksums if name.startswith(f"{table}/"))
        elif rows is None or record.status != "complete":
            # A running, killed or full-disk run may have a complete part that its list does not name yet.
            names = sorted({*names, *filter(PART.fullmatch, found)})
        wrong = {name: why for name in names if (why := _why_not(path, record, rows, table, name))}
        wrong |= {name: "is not one of the parts that this run wrote" for name in found if name not in names}
        parts[table] = [found[name] for name in names if name not in wrong]
        problems += [f"{table}/{name} {why}, {LEFT_OUT}" for name, why in sorted(wrong.items())]
    return parts, problems


def _why_not(path: Path, record: RunRecord, rows: dict[str, list[int]] | None, table: str, name: str) -> str | None:
    """What is wrong with a part, as the rest of a sentence; None if it is sound."""
    part = path / table / name
    if not part.exists():
        return "is missing"
    try:
        if record.checksums is not None:
            is_sound = known_checksum(part, state_of(part)) == record.checksums[f"{table}/{name}"]
            return None if is_sound else "is cut off or damaged"
        if not decodes(part, state_of(part), table):
            return "is cut off or damaged"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    number = int(name[5:10])
    listed = [] if rows is None else rows.get(table, [])
    if number < len(listed) and pq.read_metadata(part).num_rows != listed[number]:
        return f"does not hold the {listed[number]} rows that {LIST} names"
    return None


@lru_cache(maxsize=REMEMBERED)
def decodes(part: Path, state: State, table: str) -> bool:
    """Whether every value of a part can be read as its table's columns; cached per state of the file."""
    try:
        for batch in ds.dataset(str(part), schema=TABLES[table], format="parquet").to_batches():
            batch.validate(full=True)
    except (pa.ArrowException, OSError):
        return False
    return True


Parts = Mapping[str, Sequence[Path]]


def contradictions(path: Path, record: RunRecord, parts: Parts, whole: bool) -> Iterator[str]:
    """How the record contradicts the recorded data: layers, KV heads, tokens per phase, key size.

    `parts` are the sound parts of each table; `whole`: no part was lost. Only a complete run without losses must have
    rows of every layer, and phase rows are only counted if no part was lost.
    """
    model = record.model
    limits = (("layer", "layers", model.num_hidden_layers), ("head", "KV heads", model.num_key_value_heads))
    recorded = set(range(model.num_hidden_layers)) - set(record.sliding_layers)
    for table in ("steps", "events", "memory"):
        metadata = [pq.read_metadata(part) for part in parts[table]]
        spans = {column: _span(metadata, column) for column, _, _ in limits}
        for column, noun, count in limits:
            if (span := spans[column]) and not 0 <= span[0] <= span[1] < count:
                odd = span[0] if span[0] < 0 else span[1]
                yield f"it speaks of {count} {noun}, the table {table} of {column} {odd}"
        layers = spans["layer"]
        if table != "events" and layers and whole and record.status == "complete" and max(recorded) > layers[1]:
            yield f"it speaks of layer {max(recorded)}, the table {table} ends with layer {layers[1]}"
    if whole and parts["tokens"] and record.status != "running":
        # Threads would be slower for one small column.
        columns = (pq.ParquetFile(part).read(["phase"], use_threads=False) for part in parts["tokens"])
        phases = pc.value_counts(pa.concat_tables(columns)["phase"])
        counts = {row["values"]: row["counts"] for row in phases.to_pylist()}
        if counts.get("prompt", record.prompt_tokens) != record.prompt_tokens:
            yield f"it speaks of {record.prompt_tokens} prompt tokens, the table tokens has {counts['prompt']}"
        for phase in ("forced", "free"):
            if counts.get(phase, 0) > record.max_new_tokens:
                yield f"it allows {record.max_new_tokens} new tokens, the table tokens has {counts[phase]} {phase} ones"
    files = sorted((path / "arrays").glob("*-layer-*.safetensors"))
    for file in files:
        number = file.stem.rpartition("-layer-")[2]
        if not number.isdecimal() or int(number) >= model.num_hidden_layers:
            yield f"it speaks of {model.num_hidden_layers} layers, arrays/{file.name} of another"
    for file in [file for file in files if file.name.startswith("keys-")][:1]:
        shape: list[int] | None = None
        # A damaged file is reported when the array is read.
        with suppress(OSError, SafetensorError), safe_open(file, framework="numpy") as tensors:
            shape = tensors.get_slice("unit").get_shape()
        heads = len(record.recording.of_heads(model.num_key_value_heads))
        if shape is not None and (len(shape) != 3 or shape[::2] != [heads, model.head_dim]):
            yield (
                f"it speaks of {heads} KV heads of {model.head_dim} numbers, "
                f"arrays/{file.name} holds {' x '.join(map(str, shape))}"
            )


def _span(metadata: Sequence[pq.FileMetaData], column: str) -> tuple[int, int] | None:
    """Minimum and maximum of a column from the parts' statistics; None without rows or column."""
    least = []
    most = []
    for part in metadata:
        names = part.schema.names
        for group in range(part.num_row_groups if column in names else 0):
            statistics = part.row_group(group).column(names.index(column)).statistics
            if statistics is not None and statistics.has_min_max:
                least.append(statistics.min)
                most.append(statistics.max)
    return (min(least), max(most)) if least else None
