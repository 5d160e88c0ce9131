"""Bytes and slots of a run compared with the uncompressed cache."""

from __future__ import annotations

import pandas as pd

from kvlab.trace.schema import RunRecord

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


def full_bytes_per_token(record: RunRecord) -> int:
    """Bytes of one token in one layer of the uncompressed cache: a key and a value per KV head."""
    model = record.model
    return 2 * model.num_key_value_heads * model.head_dim * DTYPE_BYTES.get(model.dtype.removeprefix("torch."), 2)


def over_steps(memory: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """One row per step, bytes summed over layers: live, read, allocated, peak, and full (uncompressed cache, computed).

    Runs without a reading, and older ones, read in every step what they hold.
    In the prefill one layer at a time is uncompressed: `peak` is a layer's peak plus what the others have allocated.
    """
    layers = memory.assign(
        full_bytes=memory["logical_tokens"] * full_bytes_per_token(record),
        extra=memory["peak_bytes"] - memory["allocated_bytes"],
        bytes_read=memory["bytes_read"].fillna(memory["live_bytes"])
        if "bytes_read" in memory
        else memory["live_bytes"],
    )
    table = layers.groupby("step").agg(
        live_bytes=("live_bytes", "sum"),
        bytes_read=("bytes_read", "sum"),
        allocated_bytes=("allocated_bytes", "sum"),
        extra=("extra", "max"),
        full_bytes=("full_bytes", "sum"),
        live_slots=("live_slots", "mean"),
        logical_tokens=("logical_tokens", "max"),
    )
    peak = table["allocated_bytes"] + table["extra"].clip(lower=0)
    return table.assign(peak_bytes=peak).drop(columns="extra").reset_index()


def budgets_by_layer(steps: pd.DataFrame, step: int | None = None) -> pd.DataFrame:
    """Slots of every layer and KV head after `step` (default: the last): live, allotted, tokens seen, kept share."""
    step = int(steps["step"].max()) if step is None else step
    here = steps[steps["step"] == step][["layer", "head", "live_slots", "budget_slots", "tokens_seen", "regret"]]
    return here.assign(share=here["live_slots"] / here["tokens_seen"]).reset_index(drop=True)
