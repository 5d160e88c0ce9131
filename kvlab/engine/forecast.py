"""How long work still takes, by what its last steps took in this run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

LATEST = 16  # steps of a phase whose mean time is expected of the next ones: a machine may get busy meanwhile


class Forecast:
    """Estimates the seconds left of work in phases with known numbers of steps, such as layers of the prompt."""

    def __init__(self, planned: Mapping[str, int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`planned` has the number of steps of each phase."""
        self._left = dict(planned)
        self._clock = clock
        self._seconds: dict[str, deque[float]] = {phase: deque(maxlen=LATEST) for phase in planned}
        self._phase = ""
        self._steps = 0
        self.begun = self._since = clock()

    def begin(self, phase: str, steps: int = 1) -> None:
        """Note that the next `steps` steps begin; those begun before are over.

        Without steps, the time until the next ones counts for no phase.
        """
        now = self._clock()
        if self._steps:
            self._seconds[self._phase].extend([(now - self._since) / self._steps] * self._steps)
            self.skip(self._phase, self._steps)
        self._phase = phase
        self._steps = steps if phase in self._left else 0
        self._since = now

    def skip(self, phase: str, steps: int) -> None:
        """Leave out planned steps of a phase."""
        self._left[phase] = max(self._left[phase] - steps, 0)

    def plan(self, phase: str, steps: int) -> None:
        """Replace the number of steps that are left of a phase."""
        self._left[phase] = steps

    def seconds_left(self, phases: Mapping[str, float] | None = None) -> float | None:
        """Seconds from the beginning of the present step to the end; None without phases, and while
        one with steps left has no time.

        `phases` has shares for phases whose steps have not been timed: of all other time, that before included.
        """
        if not self._left:
            return None
        shares = phases or {}
        untimed = 0.0
        seconds = 0.0
        for phase, steps in self._left.items():
            if timed := self._seconds[phase]:
                seconds += steps * sum(timed) / len(timed)
            elif steps and phase in shares:
                untimed += shares[phase]
            elif steps:
                return None
        return seconds + untimed * (self._since - self.begun + seconds)
