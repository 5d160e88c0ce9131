"""How many prompts a number rests on, in words: `one prompt`, or n with a 95 % interval; and bytes in words."""

from __future__ import annotations

from collections.abc import Callable

ONE_PROMPT = "one prompt"
ONE_PROMPT_BEGINS = f"{ONE_PROMPT.capitalize()}. "  # before a sentence whose numbers are of a single prompt


def prompts(count: int) -> str:
    """`one prompt`, `20 prompts`, `1,204 prompts`."""
    return ONE_PROMPT if count == 1 else f"{count:,} prompts"


def short(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def mean_words(mean: float, low: float, high: float, n: int, show: Callable[[float], str] = short) -> str:
    """A mean over prompts as `0.25 (0.1 to 0.4, n = 20)`; one prompt has no interval: `0.25 (one prompt)`."""
    if n == 1:
        return f"{show(mean)} ({ONE_PROMPT})"
    return f"{show(mean)} ({show(low)} to {show(high)}, n = {n:,})"


def in_words(size: float) -> str:
    """Bytes as people say them: `812 MB`, `3.1 GB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= 0.9995 * unit:
            return f"{size / unit:.{0 if size >= 99.5 * unit else 1}f} {name}"
    return f"{size:.0f} bytes"
