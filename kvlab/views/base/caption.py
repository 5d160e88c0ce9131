"""Caption of a figure, in two sentences: the exact one with this run's numbers, and a simple one for newcomers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

P = ParamSpec("P")


class FigureCaption(str):
    """The exact sentence, as a string, with the simple one as `simple`.

    A plain string is a caption without a simple sentence, as plug-ins and older exports have.
    """

    simple: str

    def __new__(cls, exact: str, simple: str = "") -> FigureCaption:
        """Pair an exact sentence with a simple one."""
        caption = super().__new__(cls, exact)
        caption.simple = simple
        return caption

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # as __new__ takes them; str takes one
        """Constructor arguments of a copy, such as an unpickled one."""
        return str(self), self.simple

    def within(self, before: str = "", after: str = "") -> FigureCaption:
        """The caption with more words around the exact sentence."""
        return FigureCaption(" ".join(filter(None, (before.strip(), str(self), after.strip()))), self.simple)

    def renamed(self, name: str, other: str) -> FigureCaption:
        """The caption with another name for something, in both sentences."""
        return FigureCaption(self.replace(name, other), self.simple.replace(name, other))


def as_caption(caption: str) -> FigureCaption:
    """The caption itself, or a plain string as one without a simple sentence."""
    return FigureCaption(caption, simple_of(caption))


def simple_of(caption: str) -> str:
    """The simple sentence of a caption; "" if it has none."""
    return caption.simple if isinstance(caption, FigureCaption) else ""


def both_of(caption: str) -> str:
    """Both sentences in one line, the simple one first."""
    return f"{simple_of(caption)} {caption}".strip()


def with_simple(tell: Callable[P, str]) -> Callable[[Callable[P, str]], Callable[P, FigureCaption]]:
    """Add to a function of exact sentences the function `tell` of simple ones, which takes the same arguments."""

    def pair(caption: Callable[P, str]) -> Callable[P, FigureCaption]:
        @wraps(caption)
        def caption_both(*args: P.args, **kwargs: P.kwargs) -> FigureCaption:
            return FigureCaption(caption(*args, **kwargs), tell(*args, **kwargs))

        return caption_both

    return pair
