"""What a figure says, in two sentences: the exact one with this run's numbers, and a simple one for newcomers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

P = ParamSpec("P")


class FigureReading(str):
    """The exact sentence, as a string, with the simple one as `simple`.

    A plain string is a reading without a simple sentence, as plug-ins and older exports have.
    """

    simple: str

    def __new__(cls, exact: str, simple: str = "") -> FigureReading:
        """Pair an exact sentence with a simple one."""
        reading = super().__new__(cls, exact)
        reading.simple = simple
        return reading

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """What a copy, such as a cached one, is made of."""
        return str(self), self.simple

    def within(self, before: str = "", after: str = "") -> FigureReading:
        """The reading with more words around the exact sentence."""
        return FigureReading(" ".join(filter(None, (before.strip(), str(self), after.strip()))), self.simple)

    def renamed(self, name: str, other: str) -> FigureReading:
        """The reading with another name for something, in both sentences."""
        return FigureReading(self.replace(name, other), self.simple.replace(name, other))


def paired(reading: str) -> FigureReading:
    """The reading itself, or a plain string as one without a simple sentence."""
    return FigureReading(reading, simple_of(reading))


def simple_of(reading: str) -> str:
    """The simple sentence of a reading; "" if it has none."""
    return reading.simple if isinstance(reading, FigureReading) else ""


def both_of(reading: str) -> str:
    """Both sentences in one line, the simple one first."""
    return f"{simple_of(reading)} {reading}".strip()


def with_simple(tell: Callable[P, str]) -> Callable[[Callable[P, str]], Callable[P, FigureReading]]:
    """Add to a function of exact sentences the function `tell` of simple ones, which takes the same arguments."""

    def pair(read: Callable[P, str]) -> Callable[P, FigureReading]:
        @wraps(read)
        def read_both(*args: P.args, **kwargs: P.kwargs) -> FigureReading:
            return FigureReading(read(*args, **kwargs), tell(*args, **kwargs))

        return read_both

    return pair
