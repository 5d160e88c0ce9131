"""Traffic in an engine on a clock of its own, and texts in pairs; the engine itself with `make vllm`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvlab.serving.simulation import Engine, StepTime, Traffic, simulate
from kvlab.vllm import traffic as module
from kvlab.vllm.traffic import WINDOW, Clock, figures, limit_lengths, serve_traffic

STEP = 0.01


class FakeClock(Clock):
    """One request at a time, in order; each step takes STEP and gives a token, the first with the prompt."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), np.random.default_rng(0))
        self.waiting: list[list] = []

    def add(self, prompt: int, tokens: int) -> str:
        self.added += 1
        self.waiting.append([str(self.added), tokens])
        return str(self.added)

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list:
        self.now += STEP
        name, left = self.waiting[0]
        self.waiting[0][1] = left - 1
        if left == 1:
            self.waiting.pop(0)
        return [SimpleNamespace(request_id=f"{name}-suffix")]


def test_an_engine_that_is_the_simulated_one_has_its_times() -> None:
    """One server whose prompt takes a step: every end is that of the simulation, and so is each figure."""
    traffic = Traffic.poisson(2.0, module.PROMPT, module.OUTPUT, 40)
    traffic = Traffic(traffic.arrival, np.ones(40, np.int64), traffic.output)
    found = serve_traffic(FakeClock(), traffic)
    expected = simulate(traffic, Engine(StepTime(STEP, prompt=1e-12), pages=10**9, rows=1))
    assert found.first[0] == pytest.approx(traffic.arrival[0] + STEP)
    late = np.abs(found.end - expected.end)
    assert late.max() < 2 * STEP * 40 and (found.first <= found.end).all()
    assert figures(found)["requests/s"] == pytest.approx(figures(expected)["requests/s"], rel=0.05)
    assert figures(found)["ms per token, median"] == pytest.approx(1e3 * STEP)


def test_lengths_fit_into_the_window() -> None:
    given = limit_lengths(Traffic(np.zeros(2), np.array([5000, 3]), np.array([1, 5000])))
    assert (given.prompt + given.output <= WINDOW).all() and given.output.min() == 2
