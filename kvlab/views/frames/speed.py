"""Decoding speed of a run from its readings, and its description."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from kvlab.common.formatting import in_range, range_words, telling_digits
from kvlab.trace.schema import RunRecord

SCATTERED = 0.3  # of the median: a wider spread means that the machine was busy
REFERENCE = "full: kvlab"  # the reference implementation in benchmarks
NOTHING = "–"
SLOWER = 0.995  # of the full cache's rate: below it a ratio is called slower
SAVES = 1.005  # a limit by bytes up to this is called saving nothing
MOST_DIGITS = 4  # of a rate


@dataclass(frozen=True)
class Speed:
    """Readings of one way (eager or captured), and the eager ones, which every run has."""

    way: str
    readings: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def rate(self) -> float | None:
        """Tokens per second, the median of the readings, not rounded."""
        return statistics.median(self.readings) if self.readings else None

    @property
    def doubt(self) -> str:
        """Why the rate is unreliable; "" if it is not."""
        if len(self.readings) > 1:
            scatter = (max(self.readings) - min(self.readings)) / statistics.median(self.readings)
            return "busy machine" if scatter > SCATTERED else ""
        return "one reading" if self.readings else "no reading"

    @property
    def launched(self) -> Speed:
        """The same run by its eager readings, comparable with a recorded pass."""
        return Speed("eager", self.eager, self.eager)

    def ratio_to(self, full: Speed | None) -> tuple[float | None, str]:
        """Speed as a multiple of `full`, by readings of the same way, None if there are none; and why it is unreliable.

        The reason is "" if it is reliable.
        """
        if full is None:
            return None, "no full cache to compare with"
        mine, its = (self, full) if self.way == full.way else (self.launched, full.launched)
        ratio = mine.rate / its.rate if mine.rate is not None and its.rate is not None else None
        if full is self:
            return ratio, ""
        return ratio, mine.doubt or (f"{its.doubt} of the full cache" if its.doubt else "")

    def columns(self) -> dict[str, object]:
        """way; the readings' count, low and high, not rounded; readings and speed as text."""
        if not self.readings:
            return {
                "way": None,
                "reading_count": 0,
                "reading_low": None,
                "reading_high": None,
                "readings": "none",
                "speed": NOTHING,
            }
        low = min(self.readings)
        high = max(self.readings)
        count = len(self.readings)
        middle, *bounds = in_range(statistics.median(self.readings), low, high, self._show)
        span = f"{count} in turns, {' to '.join(bounds)}" if count > 1 else f"one, {middle}"
        busy = f", {self.doubt}" if count > 1 and self.doubt else ""
        return {
            "way": self.way,
            "reading_count": count,
            "reading_low": low,
            "reading_high": high,
            "readings": f"{span}, {self.way}{busy}",
            "speed": self.words,
        }

    @property
    def words(self) -> str:
        """The rate with the range of its readings; a dash and the reason if they are unreliable."""
        if self.rate is None:
            return NOTHING
        if len(self.readings) == 1:
            return f"{NOTHING} ({self.doubt}: {self._show(self.rate)}, {self.way})"
        low = min(self.readings)
        high = max(self.readings)
        if self.doubt:
            _, least, most = in_range(self.rate, low, high, self._show)
            return f"{NOTHING} ({self.doubt}: {least} to {most}, {self.way})"
        return range_words(self.rate, low, high, self._show, self.way)

    def _show(self, rate: float) -> str:
        """Format with enough digits that the median is not shown as a reading."""
        digits = telling_digits([*self.readings, statistics.median(self.readings)], most=MOST_DIGITS)
        return f"{float(f'{rate:.{digits}g}'):.10g}"


def speed_of(record: RunRecord) -> Speed:
    """The captured readings if there are any, else the eager ones including the run's own continuation."""
    recorded = () if record.decode_tokens_per_second is None else (record.decode_tokens_per_second,)
    eager = (*recorded, *(reading.rate for reading in record.speed_readings if reading.way == "eager"))
    captured = tuple(reading.rate for reading in record.speed_readings if reading.way == "captured")
    return Speed("captured", captured, eager) if captured else Speed("eager", eager, eager)


def speed_limit(weight_bytes: float, full_bytes: float, read_bytes: float) -> float:
    """How many times as fast as the full cache a decode step can be at most, where memory is what it waits for.

    A step moves the weights once and what it reads of the cache once: (W + C) / (W + bC), with C the full cache's bytes
    at this length and bC those that the method reads. Of one row; more rows share the weights.
    """
    return (weight_bytes + full_bytes) / (weight_bytes + read_bytes)


def ratio_text(ratio: float | None, doubt: str) -> str:
    """A ratio to the full cache's rate as `1.13 x` or `0.9 x, slower`, or a dash with the reason."""
    if doubt:
        return f"{NOTHING} ({doubt})"
    if ratio is None:
        return NOTHING
    return f"{ratio:.3g} x" + (", slower" if ratio < SLOWER else "")


def limit_text(limit: float | None) -> str:
    """A limit by bytes as `1.33 x`, or that nothing is saved."""
    if limit is None or limit != limit:
        return NOTHING
    return f"{limit:.3g} x" + ("" if limit > SAVES else ", saves nothing")
