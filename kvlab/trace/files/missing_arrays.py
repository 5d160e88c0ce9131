"""Why a run has no array that somebody asks for, one sentence each."""

from __future__ import annotations

from pathlib import Path

from kvlab.trace.record import REMEDY
from kvlab.trace.schema import EXACT_ARRAYS, PROBE_ARRAYS, RunRecord


def why_no_array(record: RunRecord, path: Path, layer: int) -> str:
    """A sentence for an array file of this layer that is not there, or cannot be read."""
    if path.exists() and record.status != "running":
        return f"{path} is cut off or damaged: {REMEDY}."
    if record.thinned:
        return record.thinned_note
    if layer in record.sliding_layers:
        return f"Layer {layer} keeps its own sliding window, so nothing was recorded for it: choose another layer."
    if record.level != "full":
        return f"This run was recorded at level {record.level}, without keys: run it again with level full."
    if not record.recording.of_layers([layer]):
        return not_asked_for(record, f"layer {layer}")
    if record.status == "running":
        return "The run is still going (or its worker was killed): its keys and attention rows appear when it ends."
    name = path.name.split("-layer-")[0]
    kept = {"attention": record.attention_rows, "keys": record.recorded_states}
    what = "keys" if name == "values" else name
    if what in record.left_out and (what not in kept or not kept[what].of_layers([layer])):
        return record.left_out[what]
    if name in EXACT_ARRAYS:
        return "No decision about the prompt was recorded: nothing had to leave, or the run is older than that."
    if name in PROBE_ARRAYS:
        return "This run holds no probe: record the comparison again at level full (its first run holds it)."
    return f"{path} is missing: the run ended before it was written, or the file was removed."


def not_asked_for(record: RunRecord, what: str) -> str:
    """A sentence for a layer or head that a run was not to record."""
    return (
        f"Nothing was recorded of {what}: this run was asked to record {record.recording.text} only; "
        "choose one of these, or record it again."
    )
