"""What recording costs in speed, and what of the bytes is live, empty, or needed only for a moment."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvlab.analysis.compare import unique_labels
from kvlab.analysis.memory import full_bytes_per_token, over_steps
from kvlab.trace.reader import Run
from kvlab.trace.schema import RunRecord


def memory_stack(memory: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """`memory.over_steps` with its stack: live, slack (allocated beyond live), transient (peak beyond allocated)."""
    table = over_steps(memory, record)
    return table.assign(
        live=table["live_bytes"],
        slack=(table["allocated_bytes"] - table["live_bytes"]).clip(lower=0),
        transient=table["peak_bytes"] - table["allocated_bytes"],
    )


def layer_bytes(memory: pd.DataFrame, record: RunRecord, step: int) -> pd.DataFrame:
    """Bytes of every layer after `step`: columns layer, live, slack, full (uncompressed, computed).

    And of a layer whose slots are packed codes, scales and native, which is all else that is allocated; else NaN.
    """
    here = memory[memory["step"] == step]
    table = {
        "layer": here["layer"],
        "live": here["live_bytes"],
        "slack": (here["allocated_bytes"] - here["live_bytes"]).clip(lower=0),
        "full": here["logical_tokens"] * full_bytes_per_token(record),
    }
    if "codes_bytes" in here:
        codes, scales = (here[name].astype(float) for name in ("codes_bytes", "scales_bytes"))
        table |= {"codes": codes, "scales": scales, "native": here["allocated_bytes"] - codes - scales}
    return pd.DataFrame(table).reset_index(drop=True)


def instrument_cost(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run: label, level, tokens a second with recording off and on, and `overhead`, how many times longer a
    recorded step takes; NaN where a pass was not timed."""
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        off, recorded = run.record.decode_tokens_per_second, run.record.recorded_tokens_per_second
        overhead = off / recorded if off and recorded else None
        rows.append({"label": label, "level": run.record.level, "off": off, "recorded": recorded, "overhead": overhead})
    return pd.DataFrame(rows).astype({"off": float, "recorded": float, "overhead": float})
