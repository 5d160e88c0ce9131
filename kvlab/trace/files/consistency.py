"""Check that a run's tables and arrays match the model and text of its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from kvlab.common.errors import UserError
from kvlab.trace.record import FILE, REMEDY
from kvlab.trace.schema import RunRecord

Parts = Mapping[str, Sequence[Path]]


def check_consistency(path: Path, record: RunRecord, parts: Parts, whole: bool) -> None:
    """Compare the record with the recorded data: layers, KV heads, tokens per phase, key size.

    `parts` are the sound parts of each table; `whole`: no part was lost. Only a complete run without losses must have
    rows of every layer, and phase rows are only counted if no part was lost. Raises UserError if they contradict each
    other.
    """
    for sentence in _contradictions(path, record, parts, whole):
        raise UserError(f"{path / FILE} contradicts what was recorded: {sentence}; {REMEDY}.")


def _contradictions(path: Path, record: RunRecord, parts: Parts, whole: bool) -> Iterator[str]:
    model = record.model
    for table in ("steps", "events", "memory"):
        metadata = [pq.read_metadata(part) for part in parts[table]]
        layers, heads = _span(metadata, "layer"), _span(metadata, "head")
        if layers and not 0 <= layers[0] <= layers[1] < model.num_hidden_layers:
            yield f"it speaks of {model.num_hidden_layers} layers, the table {table} of layer {_odd(layers)}"
        if heads and not 0 <= heads[0] <= heads[1] < model.num_key_value_heads:
            yield f"it speaks of {model.num_key_value_heads} KV heads, the table {table} of head {_odd(heads)}"
        recorded = set(range(model.num_hidden_layers)) - set(record.sliding_layers)
        if table != "events" and layers and whole and record.status == "complete" and max(recorded) > layers[1]:
            yield f"it speaks of layer {max(recorded)}, the table {table} ends with layer {layers[1]}"
    if whole:
        yield from _token_contradictions(record, parts["tokens"])
    yield from _array_contradictions(path, record)


def _token_contradictions(record: RunRecord, parts: Sequence[Path]) -> Iterator[str]:
    if not parts or record.status == "running":
        return
    # Threads would be slower for one small column.
    phases = pa.concat_tables(pq.ParquetFile(part).read(["phase"], use_threads=False) for part in parts)["phase"]
    counts = {row["values"]: row["counts"] for row in pc.value_counts(phases).to_pylist()}
    if counts.get("prompt", record.prompt_tokens) != record.prompt_tokens:
        yield f"it speaks of {record.prompt_tokens} prompt tokens, the table tokens has {counts['prompt']}"
    for phase in ("forced", "free"):
        if counts.get(phase, 0) > record.max_new_tokens:
            yield f"it allows {record.max_new_tokens} new tokens, the table tokens has {counts[phase]} {phase} ones"


def _array_contradictions(path: Path, record: RunRecord) -> Iterator[str]:
    model = record.model
    files = sorted((path / "arrays").glob("*-layer-*.safetensors"))
    for file in files:
        number = file.stem.rpartition("-layer-")[2]
        if not number.isdecimal() or int(number) >= model.num_hidden_layers:
            yield f"it speaks of {model.num_hidden_layers} layers, arrays/{file.name} of another"
    for file in [file for file in files if file.name.startswith("keys-")][:1]:
        shape = _shape(file, "unit")
        heads = len(record.recording.of_heads(model.num_key_value_heads))
        if shape is not None and (len(shape) != 3 or shape[::2] != [heads, model.head_dim]):
            yield (
                f"it speaks of {heads} KV heads of {model.head_dim} numbers, "
                f"arrays/{file.name} holds {' x '.join(map(str, shape))}"
            )


def _shape(file: Path, tensor: str) -> list[int] | None:
    """A tensor's shape; None if the file is damaged, which is reported when the array is read."""
    try:
        with safe_open(file, framework="numpy") as tensors:
            return tensors.get_slice(tensor).get_shape()
    except (OSError, SafetensorError):
        return None


def _span(metadata: Sequence[pq.FileMetaData], column: str) -> tuple[int, int] | None:
    """Minimum and maximum of a column from the parts' statistics; None without rows or column."""
    least, most = [], []
    for part in metadata:
        names = part.schema.names
        for group in range(part.num_row_groups if column in names else 0):
            statistics = part.row_group(group).column(names.index(column)).statistics
            if statistics is not None and statistics.has_min_max:
                least.append(statistics.min)
                most.append(statistics.max)
    return (min(least), max(most)) if least else None


def _odd(span: tuple[int, int]) -> int:
    return span[0] if span[0] < 0 else span[1]
