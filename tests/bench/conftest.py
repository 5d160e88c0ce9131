"""Tiny benches, and a machine whose peaks take no time to measure."""

from __future__ import annotations

import pytest
import torch

from kvlab.bench import device
from kvlab.bench.bench import Bench
from kvlab.bench.device import Peaks
from kvlab.bench.models import BenchModel, open_model
from kvlab.bench.request import make_request


@pytest.fixture(autouse=True)
def quick_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "COPY_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(device, "MATRIX_SIDE", {"cpu": 64})


@pytest.fixture(scope="session")
def tiny() -> BenchModel:
    torch.manual_seed(0)
    return open_model("shape:tiny", device="cpu")


@pytest.fixture
def bench(tiny: BenchModel):
    """A function from a request's fields to a bench with the tiny model on it."""

    def make(**fields: object) -> Bench:
        quick = {"model": "shape:tiny", "contexts": (96,), "repeats": 2, "steps": 2, "warmup": 1, "device": "cpu"}
        return Bench(tiny, make_request(**(quick | fields)), Peaks(1e9, 1e9))

    return make
