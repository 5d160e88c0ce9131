"""Discrete-event simulation of an engine that batches continuously and holds caches in pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.core.errors import UserError

LengthKind = Literal["fixed", "geometric", "lognormal"]
WARM_SHARE = 0.1  # of the requests, which find an empty engine


@dataclass(frozen=True)
class Lengths:
    """Token counts with this mean: all equal, geometric (at least 1), or log-normal with a spread of the logarithm."""

    mean: float
    kind: LengthKind = "lognormal"
    spread: float = 0.5

    def draw(self, count: int, random: np.random.Generator) -> np.ndarray:
        """(count,) int64 token counts."""
        if self.kind == "fixed":
            return np.full(count, round(self.mean), np.int64)
        if self.kind == "geometric":
            return random.geometric(1 / self.mean, count)
        drawn = random.lognormal(math.log(self.mean) - self.spread**2 / 2, self.spread, count)
        return np.maximum(drawn.round().astype(np.int64), 1)


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival: seconds, prompt tokens and generated tokens, (requests,) each."""

    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray

    @classmethod
    def poisson(cls, rate: float, prompt: Lengths, output: Lengths, count: int, seed: int = 0) -> Traffic:
        """`count` requests at `rate` per second, independent of each other.

        With one seed, traffic of another rate has the same requests closer together or further apart.
        """
        gaps, prompts, outputs = (np.random.default_rng([seed, part]) for part in range(3))
        arrival = gaps.exponential(1.0, count).cumsum() / rate
        return cls(arrival, prompt.draw(count, prompts), output.draw(count, outputs))


@dataclass(frozen=True)
class StepTime:
    """Seconds: a decode step takes `base + row * rows + slot * held slots`, a prompt `prompt` per token and `base`."""

    base: float
    row: float = 0.0
    slot: float = 0.0
    prompt: float = 0.0


@dataclass(frozen=True)
class Engine:
    """What the simulation assumes of an engine.

    A request is admitted first come, first served, when the batch has less than `rows` requests and its pages are free:
    while its prompt is read all of it is in memory, after that `held(prompt)` slots and, with `grows`, each generated
    token. Pages for all of its tokens are reserved at once, so nothing is preempted. A prompt is read in one piece, and
    the others wait meanwhile.
    """

    time: StepTime
    pages: int
    page: int = 16
    rows: int = 256
    held: Callable[[np.ndarray], np.ndarray] = lambda prompt: prompt
    grows: bool = True

    def needed(self, traffic: Traffic) -> np.ndarray:
        """Pages (requests,) reserved for a request."""
        slots = self.held(traffic.prompt) + (traffic.output if self.grows else 0)
        return -(-slots // self.page)


@dataclass(frozen=True)
class Served:
    """When each request was admitted, gave its first token, and ended, in seconds; (requests,) each.

    `together`: mean number of requests in the engine over the time from the first arrival to the last end.
    """

    traffic: Traffic
    start: np.ndarray
    first: np.ndarray
    end: np.ndarray
    together: float

    def _warm(self, values: np.ndarray) -> np.ndarray:
        return values[int(WARM_SHARE * len(values)) :]

    @property
    def seconds_per_token(self) -> np.ndarray:
        """Mean time between the tokens of a request after its first, without the first requests."""
        steps = np.maximum(self.traffic.output - 1, 1)
        return self._warm((self.end - self.first) / steps)

    @property
    def seconds_to_first(self) -> np.ndarray:
        """Time from arrival to the first token, without the first requests."""
        return self._warm(self.first - self.traffic.arrival)

    @property
    def waiting(self) -> np.ndarray:
        """Time from arrival to admission, of all requests."""
        return self.start - self.traffic.arrival


def simulate(traffic: Traffic, engine: Engine) -> Served:
    """Serve all requests; raises UserError if one does not fit into the memory even alone."""
    run = _Run(traffic, engine)
    while run.next < len(traffic.arrival) or run.rows:
        run.admit()
        if run.rows:
            run.decode()
        elif run.next < len(traffic.arrival):
            run.idle()
    span = run.now - float(traffic.arrival[0]) if len(traffic.arrival) else 0.0
    return Served(traffic, run.start, run.first, run.end, run.area / span if span else 0.0)


class _Run:
    """State of one simulation: the clock, the next request to admit, and the requests in the engine."""

    def __init__(self, traffic: Traffic, engine: Engine) -> None:
        self.traffic, self.engine = traffic, engine
        count = len(traffic.arrival)
        self.needed, self.held = engine.needed(traffic), engine.held(traffic.prompt)
        self.whole = np.maximum(-(-traffic.prompt // engine.page), self.needed)
        if count and int(self.whole.max()) > engine.pages:
            raise UserError(
                f"A request needs {int(self.whole.max()):,} pages while its prompt is read, and the memory has "
                f"{engine.pages:,}: give more memory or shorter prompts."
            )
        self.start, self.first, self.end = (np.zeros(count) for _ in range(3))
        self.now, self.area, self.next, self.used, self.slots = 0.0, 0.0, 0, 0, 0
        self.requests: list[int] = []
        self.left: list[int] = []  # tokens that each still generates

    @property
    def rows(self) -> int:
        """Requests in the engine."""
        return len(self.requests)

    def _has_room(self) -> bool:
        at = self.next
        free = self.engine.pages - self.used
        return at < len(self.start) and self.rows < self.engine.rows and int(self.whole[at]) <= free

    def _pass(self, seconds: float, rows: int) -> None:
        self.now += seconds
        self.area += seconds * rows

    def admit(self) -> None:
        """Read the prompts of requests that have arrived and fit."""
        while self._has_room() and self.traffic.arrival[self.next] <= self.now:
            at, self.next = self.next, self.next + 1
            self.start[at] = self.now
            time = self.engine.time
            reading = time.prompt * float(self.traffic.prompt[at])
            self._pass(reading + (time.base if reading else 0.0), self.rows + 1)
            self.first[at] = self.end[at] = self.now
            if self.traffic.output[at] > 1:
                self.requests.append(at)
                self.left.append(int(self.traffic.output[at]) - 1)
                self.used, self.slots = self.used + int(self.needed[at]), self.slots + int(self.held[at])

    def idle(self) -> None:
        """Wait for the next request."""
        self.now = max(self.now, float(self.traffic.arrival[self.next]))

    def decode(self) -> None:
        """Decode until a request ends, or one arrives that fits."""
        steps, time, rows = min(self.left), self.engine.time, self.rows
        each = time.base + time.row * rows + time.slot * self.slots
        growth = time.slot * rows if self.engine.grows else 0.0
        if self._has_room():
            steps = min(steps, _steps_until(float(self.traffic.arrival[self.next]) - self.now, each, growth))
        self._pass(steps * each + growth * steps * (steps - 1) / 2, rows)
        self.slots += rows * steps if self.engine.grows else 0
        self.left = [left - steps for left in self.left]
        if 0 in self.left:
            self._end()

    def _end(self) -> None:
        for at, left in zip(self.requests, self.left, strict=True):
            if left == 0:
                self.end[at] = self.now
                self.used -= int(self.needed[at])
                self.slots -= int(self.held[at]) + (int(self.traffic.output[at]) - 1 if self.engine.grows else 0)
        self.requests = [at for at, left in zip(self.requests, self.left, strict=True) if left]
        self.left = [left for left in self.left if left]


def _steps_until(seconds: float, each: float, growth: float) -> int:
    """Steps that end at or after `seconds`, at least 1; step k takes `each + k * growth` from k = 0."""
    if seconds <= 0 or each <= 0:
        return 1
    if growth <= 0:
        return max(1, math.ceil(seconds / each))
    linear = each - growth / 2  # n steps take n * linear + n^2 * growth / 2
    return max(1, math.ceil((math.sqrt(linear**2 + 2 * growth * seconds) - linear) / growth))
