"""How long a step takes and how many pages fit: from a device's figures, or from kvlab's own measurements."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from kvlab.core.errors import UserError
from kvlab.model_info.size import Model, find_model
from kvlab.planning.machine import this_machine
from kvlab.serving.simulation import Engine, StepTime

USABLE = 0.9  # share of the memory for weights and cache, as vLLM's default
HERE = "here"
PREFILL_SHARE = 0.6  # of a matrix product's speed that a prompt's pass reaches: .50 to .71 for six shapes on a CPU
READ_SHARE = 0.6  # of a copy's speed at which a decode step reads weights: .54 to .62 for 0.5B in float32 on a CPU
MEASURED = 1024, 64 * 2**20  # rows of the product, bytes of the copy
TRIES, TRIED_SECONDS = 16, 1.0  # the best counts, as a busy machine is fast now and then


@dataclass(frozen=True)
class Device:
    """Memory in bytes, bytes per second, and operations per second (multiply and add count as two)."""

    name: str
    memory: float
    bandwidth: float
    operations: float


# From the vendor's data sheets: memory, memory bandwidth, dense bfloat16 operations.
DEVICES = {
    "h100": Device("NVIDIA H100 SXM, 80 GB", 80e9, 3.35e12, 989e12),
    "h200": Device("NVIDIA H200 SXM, 141 GB", 141e9, 4.8e12, 989e12),
    "a100": Device("NVIDIA A100 SXM, 80 GB", 80e9, 2.039e12, 312e12),
    "l4": Device("NVIDIA L4, 24 GB", 24e9, 300e9, 121e12),
}


def find_device(name: str) -> Device:
    """A device by name; `here` is this machine's CPU, which is measured. Raises UserError for an unknown name."""
    if name == HERE:
        return Device("this machine's CPU", this_machine("cpu").host_bytes, *host_speed())
    if name not in DEVICES:
        raise UserError(f"There is no device {name!r}: use {', '.join([*DEVICES, HERE])}.")
    return DEVICES[name]


@lru_cache(maxsize=1)
def host_speed() -> tuple[float, float]:
    """(bytes copied, operations of a float32 matrix product) per second of this machine's CPU, measured once."""
    rows, size = MEASURED
    left, right = np.ones((rows, rows), np.float32), np.ones((rows, rows), np.float32)
    source = np.ones(size, np.uint8)
    return 2 * size / _best(source.copy), 2 * rows**3 / _best(lambda: left @ right)


def _best(work: Callable[[], object]) -> float:
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < TRIES and sum(taken) < TRIED_SECONDS):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def slot_bytes(model: Model, number: int) -> int:
    """Bytes of a token's keys and values in all layers that keep the whole text, at `number` bytes each."""
    return 2 * model.full_layers * model.key_value_heads * model.head_dim * number


def pages_of(device: Device, model: Model, number: int, page: int) -> int:
    """Pages that fit beside the weights; raises UserError if the weights do not."""
    room = USABLE * device.memory - model.weight_bytes(number)
    if room < page * slot_bytes(model, number):
        raise UserError(f"{model.name} does not fit into the memory of {device.name}: choose another device or model.")
    return int(room // (page * slot_bytes(model, number)))


def engine_of(
    model: str, device: str, page: int = 16, memory: float | None = None, bench: Path | None = None
) -> tuple[Engine, Device]:
    """The engine that serves a model on a device, with the full cache; times come from `bench` rows if given.

    Raises UserError if one of them is unknown, or the weights do not fit.
    """
    sizes, place = find_model(model), find_device(device)
    place = place if memory is None else replace(place, memory=memory)
    number = sizes.number_bytes("auto", "cpu" if device == HERE else "cuda")
    time = time_from_figures(place, sizes, number)
    if bench is not None:
        time = time_from_rows(_read_rows(bench), time.prompt)
    return Engine(time, pages_of(place, sizes, number, page), page), place


def _read_rows(file: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(file, columns=["figure", "status", "method", "batch", "context", "median"])
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no file of results of `kvlab bench`: name one that it wrote.") from error


def assumptions(engine: Engine, device: Device, model: str) -> str:
    """What the numbers rest on, in sentences."""
    time, usable = engine.time, f"{100 * USABLE:.0f} % of the memory is used"
    return (
        f"Assumed: {model} on {device.name}; {engine.pages:,} pages of {engine.page} tokens beside the weights "
        f"({usable}); a step takes {1e3 * time.base:.3g} ms, {1e3 * time.row:.2g} ms a request and "
        f"{1e6 * time.slot:.2g} ms per 1,000 held slots; a prompt {1e3 * time.prompt:.2g} ms a token, in one piece, "
        f"while the others wait and all of it is in memory; at most {engine.rows} requests in a batch; generated "
        "tokens are kept; what is held of a prompt is copied into as few pages as possible unless said otherwise."
    )


def time_from_figures(device: Device, model: Model, number: int) -> StepTime:
    """A step reads all weights and all held slots, and computes for every row; parts are added, not overlapped.

    `PREFILL_SHARE` and `READ_SHARE` of the device's figures are reached.
    """
    read, compute = READ_SHARE * device.bandwidth, PREFILL_SHARE * device.operations
    of_token = 2 * model.read_per_token / compute
    return StepTime(number * model.read_per_token / read, of_token, slot_bytes(model, number) / read, of_token)


def time_from_rows(rows: pd.DataFrame, prompt: float) -> StepTime:
    """Fit decode steps of full caches measured by `kvlab bench decode` or `batch`: base, row and slot, none negative.

    `prompt`: seconds per token of a prompt, which these rows do not have. Raises UserError without enough rows.
    """
    full = rows["method"].str.startswith("full")
    steps = rows[(rows["figure"] == "decode step") & (rows["status"] == "ok") & full]
    steps = steps.groupby(["batch", "context"], as_index=False)["median"].min()  # of several full caches the fastest
    if len(steps) < 3:
        raise UserError(
            "The benchmark has fewer than three batches and contexts of the full cache: measure more with `kvlab bench "
            "decode --contexts 1024,4096 --batches 1,4`."
        )
    batch, context, median = (steps[name].to_numpy(float) for name in ("batch", "context", "median"))
    return fitted_time(batch, context, median / 1e3, prompt)


def fitted_time(batch: np.ndarray, context: np.ndarray, seconds: np.ndarray, prompt: float) -> StepTime:
    """Fit decode steps of `batch` rows with `context` slots each, (steps,): base, row and slot, none negative."""
    design = np.stack([np.ones(len(batch)), batch, batch * context], 1)
    base, row, slot = _not_negative(design, seconds)
    return StepTime(base, row, slot, prompt)


def _not_negative(design: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Least squares of relative errors with no negative coefficient: the best of all subsets of columns."""
    best, error = [0.0] * design.shape[1], np.inf
    for subset in range(1, 2 ** design.shape[1]):
        chosen = [column for column in range(design.shape[1]) if subset >> column & 1]
        scaled = design[:, chosen] / seconds[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
        left = float(((scaled @ found - 1) ** 2).sum())
        if (found >= 0).all() and left < error:
            error = left
            best = [float(found[chosen.index(column)]) if column in chosen else 0.0 for column in range(len(best))]
    return best
