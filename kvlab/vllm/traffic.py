"""Poisson traffic in vLLM on a CPU beside kvlab's simulated engine: `python -m kvlab.vllm.traffic [REQUESTS]`.

Both clocks are processor seconds of vLLM's steps, so that other work on the machine changes little: vLLM's clock goes
on by what each step took, and jumps to the next arrival where no request is left. The simulation gets times of a step
that are fitted to other steps of the same engine, with batches of equal requests.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvlab.core.assets import asset_path
from kvlab.serving import simulation
from kvlab.serving.capacity import PERCENTILE
from kvlab.serving.devices import fitted_time
from kvlab.serving.simulation import Lengths, Served, StepTime, Traffic, simulate
from kvlab.vllm.engine import PAGE, Engine, EngineShape, started_engine

WINDOW, ROWS = 1024, 8
PROMPT, OUTPUT = Lengths(200), Lengths(40)
LOADS = (0.5, 0.9)  # of the rate at which the simulated engine is always busy
BATCHES, CONTEXTS, STEPS = (1, 2, 4, 8), (64, 256, 768), 24
TOKENS = range(300, 1000)  # ids of the prompts' random tokens


@dataclass
class Clock:
    """vLLM, with its requests and the processor seconds of its steps."""

    engine: Engine
    random: np.random.Generator
    now: float = 0.0
    added: int = 0

    def add(self, prompt: int, tokens: int) -> str:
        """A request of random tokens; returns its name."""
        from vllm import SamplingParams

        self.added += 1
        ids = self.random.choice(np.array(TOKENS), prompt).tolist()
        settings = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.llm.llm_engine.add_request(str(self.added), {"prompt_token_ids": ids}, settings)
        return str(self.added)

    @property
    def is_busy(self) -> bool:
        """Whether a request is left."""
        return bool(self.engine.llm.llm_engine.has_unfinished_requests())

    def step(self) -> list[Any]:
        """One step; returns vLLM's outputs of the requests that it held."""
        begun = time.process_time()
        outputs = self.engine.llm.llm_engine.step()
        self.now += time.process_time() - begun
        return list(outputs)


def measured_time(clock: Clock) -> StepTime:
    """Fit the seconds of a step: prompts read alone, and decode steps of batches with equal contexts."""
    rows = []
    for batch in BATCHES:
        for context in CONTEXTS:
            for _ in range(batch):
                clock.add(context, STEPS)
            seconds = []
            while clock.is_busy:
                before = clock.now
                clock.step()
                seconds.append(clock.now - before)
            rows.append((batch, context, seconds[0], float(np.median(seconds[2:]))))
    batches, contexts, first, each = (np.array(column, float) for column in zip(*rows, strict=True))
    time_ = fitted_time(batches, contexts + STEPS / 2, each, 0.0)
    read = batches * contexts
    prompt = float(((first - time_.base) / read).mean())
    return StepTime(time_.base, time_.row, time_.slot, max(prompt, 0.0))


def serve_traffic(clock: Clock, traffic: Traffic) -> Served:
    """Serve the traffic with vLLM: admitted, first token and end of each request."""
    count = len(traffic.arrival)
    first, end, names, given = np.zeros(count), np.zeros(count), dict[str, int](), 0
    clock.now = 0.0
    while given < count or clock.is_busy:
        if not clock.is_busy:
            clock.now = max(clock.now, float(traffic.arrival[given]))
        while given < count and traffic.arrival[given] <= clock.now:
            names[clock.add(int(traffic.prompt[given]), int(traffic.output[given]))] = given
            given += 1
        for output in clock.step():
            at = names[str(output.request_id).split("-")[0]]
            first[at] = first[at] or clock.now
            end[at] = clock.now
    return Served(traffic, traffic.arrival, first, end, 0.0)


def figures(done: Served) -> dict[str, float]:
    """Requests per second from the first arrival to the last end, and percentiles of milliseconds."""
    span = float(done.end.max() - done.traffic.arrival[0])
    return {
        "requests/s": len(done.end) / span,
        "ms per token, median": 1e3 * float(np.median(done.seconds_per_token)),
        f"ms per token, p{PERCENTILE}": 1e3 * float(np.percentile(done.seconds_per_token, PERCENTILE)),
        f"ms to the first token, p{PERCENTILE}": 1e3 * float(np.percentile(done.seconds_to_first, PERCENTILE)),
    }


def limit_lengths(traffic: Traffic) -> Traffic:
    """The traffic with lengths that fit into the engine's window."""
    output = np.clip(traffic.output, 2, WINDOW // 4)
    return Traffic(traffic.arrival, np.clip(traffic.prompt, 1, WINDOW - WINDOW // 4), output)


def main(requests: int = 60) -> None:
    """Print both sides' figures at two loads."""
    shape = EngineShape(WINDOW, ROWS)
    with started_engine(str(asset_path("mini")), shape) as engine:
        clock = Clock(engine, np.random.default_rng(0))
        measured_time(clock)  # the first steps are slower
        model = simulation.Engine(measured_time(clock), shape.page_count, PAGE, ROWS)
        step = model.time
        print(f"step: {1e3 * step.base:.2f} ms + {1e3 * step.row:.3f} a row + {1e6 * step.slot:.2f} per 1,000 slots; "
              f"prompt {1e6 * step.prompt:.1f} us a token")  # fmt: skip
        rush = limit_lengths(Traffic.poisson(1e6, PROMPT, OUTPUT, requests))
        most = figures(simulate(rush, model))["requests/s"]
        for load in LOADS:
            traffic = limit_lengths(Traffic.poisson(load * most, PROMPT, OUTPUT, requests))
            _print(load, load * most, figures(serve_traffic(clock, traffic)), figures(simulate(traffic, model)))


def _print(load: float, rate: float, found: dict[str, float], expected: dict[str, float]) -> None:
    print(f"load {load:.0%}, {rate:.2f} requests/s arrive: vLLM, simulated, difference")
    for name, value in found.items():
        print(f"  {name}: {value:.2f}, {expected[name]:.2f}, {100 * (expected[name] / value - 1):+.0f} %")


def _requests(arguments: Sequence[str]) -> int:
    return int(arguments[0]) if arguments else 60


if __name__ == "__main__":
    main(_requests(sys.argv[1:]))
