"""Counts in words: prompts that a number rests on, with their interval, parts that were left out, and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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


def left_out(counts: Mapping[str, int]) -> tuple[str, ...]:
    """`3 images and 1 footnote were left out.`; nothing where all counts are 0."""
    named = [f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count]
    if not named:
        return ()
    verb = "was" if len(named) == 1 and named[0].startswith("1 ") else "were"
    return (f"{listed(named)} {verb} left out.",)


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
