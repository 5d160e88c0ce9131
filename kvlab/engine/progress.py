"""Report progress and check for cancellation."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from kvlab.common.formatting import format_bytes
from kvlab.core.errors import UserError
from kvlab.models.downloads import Report
from kvlab.requests.compare import Progress
from kvlab.requests.live_texts import LiveTexts

LATEST = 16  # steps of a phase whose mean time is expected of the next ones: a machine may get busy meanwhile


class Forecast:
    """Estimates the seconds left of work in phases with known numbers of steps, such as layers of the prompt.

    `left` are the steps that are left of each phase; they may be planned anew.
    """

    def __init__(self, planned: Mapping[str, int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`planned` has the number of steps of each phase."""
        self.left = dict(planned)
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
        self._steps = steps if phase in self.left else 0
        self._since = now

    def skip(self, phase: str, steps: int) -> None:
        """Leave out planned steps of a phase."""
        self.left[phase] = max(self.left[phase] - steps, 0)

    def seconds_left(self, phases: Mapping[str, float] | None = None) -> float | None:
        """Seconds from the beginning of the present step to the end; None without phases, and while
        one with steps left has no time.

        `phases` has shares for phases whose steps have not been timed: of all other time, that before included.
        """
        if not self.left:
            return None
        shares = phases or {}
        untimed = 0.0
        seconds = 0.0
        for phase, steps in self.left.items():
            if timed := self._seconds[phase]:
                seconds += steps * sum(timed) / len(timed)
            elif steps and phase in shares:
                untimed += shares[phase]
            elif steps:
                return None
        return seconds + untimed * (self._since - self.begun + seconds)


LIVE_SECONDS = 0.25  # between two readings of the texts
LIVE_SHARE = 0.005  # of the time that they may take


class Cancelled(Exception):
    """Raised between steps when the user stops the work."""


class Watch:
    """Count and report steps; raise `Cancelled` at the next step after a stop was requested.

    The first word of a stage names its phase, of which steps take about equally long.
    """

    def __init__(
        self,
        steps: int | Mapping[str, int],
        report: Callable[[Progress], None] | None,
        cancelled: Callable[[], bool] | None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """`steps` are counted, in all or by phase; `shares` of all other time are expected of phases not yet timed."""
        planned = {} if isinstance(steps, int) else dict(steps)
        self.total = steps if isinstance(steps, int) else sum(planned.values())
        self.done = 0
        self.forecast = Forecast(planned)
        self._shares = shares
        self.run_id: str | None = None
        self._report = report
        self._cancelled = cancelled
        self._pace = Pace()

    def advance(self, stage: str, steps: int = 1, live: Callable[[], LiveTexts] | None = None) -> None:
        """Report that `steps` more of `stage` are about to run, now and then with the texts that `live` reads."""
        self.check()
        self.done = min(self.done + steps, self.total)
        self.forecast.begin(stage.split()[0], steps)
        self._tell(stage, live if live is not None and self._pace.is_due() else None)

    def show(self, stage: str, live: Callable[[], LiveTexts]) -> None:
        """Report the texts that `live` reads, however long ago the last were."""
        self.forecast.begin(stage.split()[0], 0)
        self._tell(stage, live)

    def check(self) -> None:
        """Raise `Cancelled` if a stop was requested."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled

    def skip(self, phase: str, steps: int) -> None:
        """Count steps that are not needed, as a text ended early."""
        self.done = min(self.done + steps, self.total)
        self.forecast.skip(phase, steps)

    def _tell(self, stage: str, live: Callable[[], LiveTexts] | None) -> None:
        if self._report is None:
            return
        with self._pace.spending() if live is not None else nullcontext():
            texts = None if live is None else live()
            left = self.forecast.seconds_left(self._shares) if self.done else None
            end = None if left is None else time.time() + left
            progress = Progress(
                stage=stage, done=self.done, total=self.total, run_id=self.run_id, live=texts, expected_end=end
            )
            self._report(progress)


class Pace:
    """When to do something again that is only for show: after some seconds, and in a share of the time."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        seconds: float | None = None,
        share: float | None = None,
    ) -> None:
        """By default after `LIVE_SECONDS`, in `LIVE_SHARE` of the time."""
        self._clock = clock
        self._seconds = LIVE_SECONDS if seconds is None else seconds
        self._share = LIVE_SHARE if share is None else share
        self._begun = clock()
        self._last = -math.inf
        self._spent = 0.0

    def is_due(self) -> bool:
        """Whether it may be done now."""
        now = self._clock()
        return now - self._last >= self._seconds and self._spent <= self._share * (now - self._begun)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Measure what it takes."""
        self._last = begun = self._clock()
        yield
        self._spent += self._clock() - begun


def download_reporter(
    report: Callable[[Progress], None] | None, cancelled: Callable[[], bool] | None = None
) -> Report | None:
    """A callback that reports a download; it raises UserError once a stop was requested. None without `report`."""
    if report is None:
        return None

    def report_download(name: str, done: float, total: float) -> None:
        amount = f"{format_bytes(done)} of {format_bytes(total)}" if total else ""
        if cancelled is not None and cancelled():
            raise UserError(
                f"The download of {name} was stopped{f' at {amount}' if amount else ''}: complete files are kept, and "
                "the next download continues from them."
            )
        report(Progress(stage=f"downloading {name}{f': {amount}' if amount else ''}", done=0, total=1))

    return report_download
