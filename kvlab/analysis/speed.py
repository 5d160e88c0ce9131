"""How fast a run decoded, from its readings, and in how many digits that may be said."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import floor, log10

from kvlab.trace.schema import RunRecord

SCATTERED = 0.3  # of the median: where readings lie further apart, something else kept the machine busy
CLOSE = 0.1  # within it two digits mean something


@dataclass(frozen=True)
class Speed:
    """Readings of one way (eager or captured), and the eager ones, which every run has."""

    way: str
    readings: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def rate(self) -> float | None:
        """Tokens a second, the median in one digit, or in two where at least three readings lie close together."""
        return told(self.readings)

    @property
    def scattered(self) -> bool:
        """Whether the readings lie so far apart that the machine was busy with something else."""
        return _scatter(self.readings) > SCATTERED

    def ratio_to(self, full: Speed | None) -> float | None:
        """How many times as fast as `full`, by readings of the same way; None where there are none."""
        if full is None:
            return None
        mine, its = (self.readings, full.readings) if self.way == full.way else (self.eager, full.eager)
        return statistics.median(mine) / statistics.median(its) if mine and its else None

    def columns(self) -> dict[str, object]:
        """way; readings and speed, both in words."""
        if not self.readings:
            return {"way": None, "readings": "none", "speed": "–"}
        low, high = (f"{rounded(value, 2):g}" for value in (min(self.readings), max(self.readings)))
        count = len(self.readings)
        span = f"{count} in turns, {low} to {high}" if count > 1 else "one"
        busy = ", busy machine" if self.scattered else ""
        own = f" ({low}–{high}, {self.way}{busy})" if count > 1 else f" ({self.way}, one reading)"
        return {"way": self.way, "readings": f"{span}, {self.way}{busy}", "speed": f"{self.rate:g}{own}"}


def speed_of(record: RunRecord) -> Speed:
    """By captured steps where there are any, else by eager ones, that of the run's own continuation among them."""
    own = () if record.decode_tokens_per_second is None else (record.decode_tokens_per_second,)
    eager = (*own, *(reading.rate for reading in record.speed_readings if reading.way == "eager"))
    captured = tuple(reading.rate for reading in record.speed_readings if reading.way == "captured")
    return Speed("captured", captured, eager) if captured else Speed("eager", eager, eager)


def told(readings: tuple[float, ...]) -> float | None:
    """The median of readings in the digits they bear."""
    if not readings:
        return None
    close = len(readings) >= 3 and _scatter(readings) <= CLOSE
    return rounded(statistics.median(readings), 2 if close else 1)


def rounded(value: float, digits: int) -> float:
    """To so many significant digits."""
    return round(value, digits - 1 - floor(log10(abs(value)))) if value else 0.0


def _scatter(readings: tuple[float, ...]) -> float:
    return (max(readings) - min(readings)) / statistics.median(readings) if len(readings) > 1 else 0.0
