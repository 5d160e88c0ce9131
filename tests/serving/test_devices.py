"""Times of steps from figures and from measured rows, and the memory for pages."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from kvlab.core.errors import UserError
from kvlab.model_info.size import find_model
from kvlab.serving.devices import DEVICES, USABLE, assumptions, engine_of, find_device, pages_of, time_from_rows


def rows(*steps: tuple[int, int, float, str]) -> pd.DataFrame:
    frame = pd.DataFrame(steps, columns=["batch", "context", "median", "method"])
    return frame.assign(figure="decode step", status="ok")


def test_measured_steps_give_base_row_and_slot() -> None:
    """t = 5 ms + 0.2 ms a row + 1 us a slot; slower full caches, other methods and failures do not count."""
    steps = [
        (batch, context, 5 + 0.2 * batch + 1e-3 * batch * context, "full: kvlab")
        for batch in (1, 4, 16)
        for context in (256, 4096)
    ]
    slower = [(batch, context, 3 * time, "full: transformers sdpa") for batch, context, time, _ in steps]
    table = rows(*steps, *slower, (1, 256, 0.1, "h2o"))
    failed = rows((1, 256, 0.01, "full: kvlab")).assign(status="oom")
    time = time_from_rows(pd.concat([table, failed]), prompt=2e-5)
    assert (time.base, time.row, time.slot) == pytest.approx((5e-3, 2e-4, 1e-6))
    assert time.prompt == 2e-5
    falling = rows((1, 100, 9.0, "full: kvlab"), (2, 100, 8.0, "full: kvlab"), (4, 100, 7.0, "full: kvlab"))
    assert min(vars(time_from_rows(falling, 0.0)).values()) == 0
    with pytest.raises(UserError, match="fewer than three"):
        time_from_rows(rows((1, 256, 5.0, "full: kvlab")), 0.0)


def test_pages_are_what_the_weights_leave() -> None:
    model, device = find_model("shape:llama3-8b"), DEVICES["h100"]
    page = 16 * 2 * 32 * 8 * 128 * 2  # tokens, keys and values, layers, KV heads, numbers, bytes
    assert pages_of(device, model, 2, 16) == int((USABLE * 80e9 - 2 * model.parameters) // page)
    engine, place = engine_of("shape:llama3-8b", "h100", memory=40e9)
    assert place.memory == 40e9 and engine.pages < pages_of(device, model, 2, 16)
    assert engine.time.base == pytest.approx(2 * model.read_per_token / (0.6 * device.bandwidth))
    assert "26,674" not in assumptions(engine, place, "llama") and f"{engine.pages:,}" in assumptions(engine, place, "")


@pytest.mark.parametrize(
    ("model", "device", "bench", "why"),
    [
        ("shape:llama3-8b", "abacus", None, "There is no device"),
        ("shape:llama2-13b", "l4", None, "does not fit"),
        ("shape:llama3-8b", "h100", "nothing.parquet", "no file of results"),
    ],
)
def test_what_cannot_be_served_says_so(model: str, device: str, bench: str | None, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        engine_of(model, device, bench=None if bench is None else tmp_path / bench)


def test_this_machine_s_processor_is_measured_once() -> None:
    """Twice the bytes of a copy, and two operations a product's element, by a clock of the test's own."""
    one, again = find_device("here"), find_device("here")
    assert (one.bandwidth, one.operations) == (again.bandwidth, again.operations)
    source = np.ones(2**24, np.uint8)
    begun = time.perf_counter()
    source.copy()
    assert one.bandwidth > 2 * 2**24 / (time.perf_counter() - begun) / 10
    assert one.memory < psutil.virtual_memory().total and one.operations > 1e8
