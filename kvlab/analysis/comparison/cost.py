"""Cost of recording in speed, and how bytes divide into live, slack and transient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvlab.core.table_growth import BLOCK
from kvlab.trace.reader import Run
from kvlab.trace.schema import RunRecord
from kvlab.views.frames.compare import unique_labels
from kvlab.views.frames.memory import full_bytes_per_token, over_steps
from kvlab.views.frames.speed import speed_of


def memory_stack(memory: pd.DataFrame, record: RunRecord) -> pd.DataFrame:
    """`memory.over_steps` as a stack: live, slack (allocated but not live), transient (peak beyond allocated).

    `block` is a block of slots per head; `room` the slack within it, layer by layer, for growth; `padding` the rest.
    """
    table = over_steps(memory, record)
    parts = pd.DataFrame({"step": memory["step"], **_slack(memory)}).groupby("step").sum().reset_index(drop=True)
    transient = table["peak_bytes"] - table["allocated_bytes"]
    return table.assign(live=table["live_bytes"], transient=transient, **dict(parts.items()))


def _slack(memory: pd.DataFrame) -> dict[str, pd.Series]:
    """The slack columns per row (step and layer) in bytes; without slot counts all slack is padding."""
    slack = (memory["allocated_bytes"] - memory["live_bytes"]).clip(lower=0)
    slots = memory["live_slots"] if "live_slots" in memory else pd.Series(0.0, memory.index)
    block = (BLOCK * memory["live_bytes"] / slots.where(slots > 0)).fillna(0)
    room = np.minimum(slack, block)
    return {"slack": slack, "block": block, "room": room, "padding": slack - room}


def layer_bytes(memory: pd.DataFrame, record: RunRecord, step: int) -> pd.DataFrame:
    """Bytes of every layer after `step`: columns layer, live, full (computed) and those of the slack.

    For a layer with quantised slots also codes, scales and native (everything else allocated); else NaN.
    """
    here = memory[memory["step"] == step]
    full = here["logical_tokens"] * full_bytes_per_token(record)
    table = {"layer": here["layer"], "live": here["live_bytes"], **_slack(here), "full": full}
    if "codes_bytes" in here:
        codes, scales = (here[name].astype(float) for name in ("codes_bytes", "scales_bytes"))
        table |= {"codes": codes, "scales": scales, "native": here["allocated_bytes"] - codes - scales}
    return pd.DataFrame(table).reset_index(drop=True)


def instrument_cost(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run, not rounded: label, level, and decode rates without and with recording.

    `off` is the median of the unrecorded readings, between `off_low` and `off_high`; `recorded` adds the recording
    to the first of them; `overhead` is how many times longer a recorded step takes, and `doubt` why that is unreliable,
    or "". NaN if a pass was not timed.
    """
    rows = []
    for run, label in zip(runs, unique_labels(runs), strict=True):
        bare = speed_of(run.record).launched
        recorded = run.record.recorded_tokens_per_second
        row = {"label": label, "level": run.record.level, "off": bare.rate, "recorded": recorded}
        row |= {"off_low": min(bare.readings, default=None), "off_high": max(bare.readings, default=None)}
        rows.append(row | {"overhead": bare.rate / recorded if bare.rate and recorded else None, "doubt": bare.doubt})
    numbers = ("off", "off_low", "off_high", "recorded", "overhead")
    return pd.DataFrame(rows).astype(dict.fromkeys(numbers, float))
