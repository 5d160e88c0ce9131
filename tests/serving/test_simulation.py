"""The simulated engine against queueing theory where that is exact, and against its own rules step by step."""

from __future__ import annotations

import numpy as np
import pytest

from kvlab.core.errors import UserError
from kvlab.serving.simulation import Engine, Lengths, StepTime, Traffic, simulate

STEP = 0.01
ONE_SERVER = Engine(StepTime(STEP), pages=10**9, rows=1)


@pytest.mark.parametrize("kind", ["fixed", "geometric"])
def test_one_server_waits_as_pollaczek_and_khinchine_say(kind: str) -> None:
    """Mean wait lambda E[S^2] / (2 (1 - rho)): equal service times are M/D/1, geometric ones nearly M/M/1.

    The first token comes with the prompt, so n tokens take n - 1 steps.
    """
    output, load = Lengths(21, kind), 0.5
    service = STEP * (output.draw(10**6, np.random.default_rng(5)) - 1)
    rate = load / service.mean()
    expected = rate * (service**2).mean() / (2 * (1 - load))
    waits = simulate(Traffic.poisson(rate, Lengths(1, "fixed"), output, 30_000, 3), ONE_SERVER).waiting
    assert waits.mean() == pytest.approx(expected, rel=0.06)


def test_one_server_waits_as_lindley_says() -> None:
    """Each wait is the one before, plus its service, minus the time between the arrivals, and never negative."""
    traffic = Traffic.poisson(4.0, Lengths(1, "fixed"), Lengths(21, "geometric"), 300, 1)
    wait = [0.0]
    for before in range(299):
        gap = traffic.arrival[before + 1] - traffic.arrival[before]
        wait.append(max(0.0, wait[-1] + STEP * (traffic.output[before] - 1) - gap))
    assert simulate(traffic, ONE_SERVER).waiting == pytest.approx(wait, abs=1e-9)


def test_littles_law() -> None:
    """The mean number in the engine is the rate times the mean time in it, whatever the batch and the memory."""
    traffic = Traffic.poisson(20.0, Lengths(200), Lengths(40, "geometric"), 500)
    engine = Engine(StepTime(0.01, 1e-4, 1e-6, 1e-5), pages=200, page=16, rows=12, held=lambda p: p // 4)
    done = simulate(traffic, engine)
    span = done.end.max() - traffic.arrival[0]
    assert done.together == pytest.approx((done.end - done.start).sum() / span)


def test_leaps_over_steps_are_the_steps() -> None:
    """The same engine, one step at a time in a plain loop."""
    traffic = Traffic.poisson(12.0, Lengths(90), Lengths(20, "geometric"), 60, seed=2)
    time, pages, page, most = StepTime(0.01, 2e-3, 3e-6, 1e-4), 40, 16, 4
    done = simulate(traffic, Engine(time, pages, page, most, lambda prompt: prompt // 2))
    now, waiting, running, end = 0.0, list(range(60)), {}, {}
    while waiting or running:
        while waiting and traffic.arrival[waiting[0]] <= now and len(running) < most:
            prompt, output = (int(part[waiting[0]]) for part in (traffic.prompt, traffic.output))
            reserved = -(-(prompt // 2 + output) // page)
            used = sum(size for _, size, _ in running.values())
            if max(-(-prompt // page), reserved) > pages - used:
                break
            at = waiting.pop(0)
            now += time.base + time.prompt * prompt
            end[at] = now
            if output > 1:
                running[at] = [output - 1, reserved, prompt // 2]
        if not running:
            now = max(now, traffic.arrival[waiting[0]]) if waiting else now
            continue
        now += time.base + time.row * len(running) + time.slot * sum(slots for *_, slots in running.values())
        for at in [*running]:
            running[at][0] -= 1
            running[at][2] += 1
            if running[at][0] == 0:
                end[at] = now
                del running[at]
    assert done.end == pytest.approx([end[at] for at in range(60)], rel=1e-9)


def test_a_request_larger_than_the_memory_says_so() -> None:
    traffic = Traffic.poisson(1.0, Lengths(1000, "fixed"), Lengths(5, "fixed"), 3)
    with pytest.raises(UserError, match="more memory or shorter prompts"):
        simulate(traffic, Engine(StepTime(0.01), pages=10))
