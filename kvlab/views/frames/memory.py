"""Bytes and slots of a run compared with the uncompressed cache."""

import numpy as np
import pandas as pd

from kvlab.trace.schema import RunRecord

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


def full_bytes_per_token(record: RunRecord) -> int:
    """Bytes of one token in one layer of the uncompressed cache: a key and a value per KV head."""
    model = record.model
    return 2 * model.num_key_value_heads * model.head_dim * DTYPE_BYTES.get(model.dtype.removeprefix("torch."), 2)


def over_steps(memory: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """One row per step, bytes summed over layers: live, read, allocated, peak, and full (uncompressed cache, computed).

    Runs of dense attention, and older ones, read in every step what they hold. `peak_bytes` is the most that all layers
    held at once within the step: in the prompt's, several layers may be uncompressed at once, and all of them are where
    a method decides after the last layer or reads the prompt again. NaN for runs that recorded each layer's alone.
    """
    layers = memory.assign(
        full_bytes=memory["logical_tokens"] * full_bytes_per_token(record),
        bytes_read=memory["bytes_read"].fillna(memory["live_bytes"])
        if "bytes_read" in memory
        else memory["live_bytes"],
        peak_bytes=memory["cache_peak_bytes"].astype(float) if "cache_peak_bytes" in memory else np.nan,
    )
    return layers.groupby("step", as_index=False).agg(
        live_bytes=("live_bytes", "sum"),
        bytes_read=("bytes_read", "sum"),
        allocated_bytes=("allocated_bytes", "sum"),
        peak_bytes=("peak_bytes", "max"),
        full_bytes=("full_bytes", "sum"),
        live_slots=("live_slots", "mean"),
        logical_tokens=("logical_tokens", "max"),
    )


def budgets_by_layer(steps: pd.DataFrame, step: int | None = None) -> pd.DataFrame:
    """Slots of every layer and KV head after `step` (default: the last): live, allotted, tokens seen, kept share."""
    step = int(steps["step"].max()) if step is None else step
    here = steps[steps["step"] == step][["layer", "head", "live_slots", "budget_slots", "tokens_seen", "regret"]]
    return here.assign(share=here["live_slots"] / here["tokens_seen"]).reset_index(drop=True)
