"""Numbers as text: ranges and 95 % intervals with their number of prompts, durations, bytes, and lists of words."""

import math
import re
from collections.abc import Callable, Mapping, Sequence

# Models of a package index have a short name (`kvlab.models.info.packaged_models`).
TITLES = {"smollm2": "SmolLM2-135M-Instruct (Q4_1)"}
GGUF = re.compile(r"(.+?)[.-](I?Q\d\w*|B?F16|F32|MXFP4\w*)\.gguf", re.IGNORECASE)
# `owner/name` on a hub is a name, not a path; the hub's cache keeps it in a folder `models--owner--name`.
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")


def model_title(name: str) -> str:
    """The folder's name if `name` is a path, that of a GGUF file with its type, else `name`.

    `/data/model-7b/` becomes `model-7b`, `/data/model.Q4_1.gguf` becomes `model (Q4_1)`; `mini`, `shape:llama3-8b` and
    the hub's `owner/name` stay. A snapshot in the hub's cache gets its name on the hub.
    """
    if name in TITLES:
        return TITLES[name]
    parts = [part for part in re.split(r"[/\\]", name.strip()) if part not in ("", ".", "..", "~")]
    if not parts:
        return name
    if parts[-1].lower().endswith(".gguf"):
        typed = GGUF.fullmatch(parts[-1])
        return f"{typed[1]} ({typed[2].upper()})" if typed else parts[-1][: -len(".gguf")]
    if HUB.fullmatch(name):
        return name
    cached = next((found for part in parts if (found := CACHED.fullmatch(part))), None)
    return f"{cached[1]}/{cached[2]}" if cached else parts[-1]


def shared_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Number of elements that two sequences have in common from the start, before the first that differs."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))


Show = Callable[[float], str]  # must never print a larger number below a smaller one

ONE_PROMPT = "one prompt"
ONE_PROMPT_BEGINS = f"{ONE_PROMPT.capitalize()}. "  # before a sentence whose numbers are of a single prompt


def prompts(count: int) -> str:
    """`one prompt`, `20 prompts`, `1,204 prompts`."""
    return ONE_PROMPT if count == 1 else f"{count:,} prompts"


def short(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def in_range(point: float, low: float, high: float, show: Show = short) -> tuple[str, str, str]:
    """A point and its bounds as printed, low <= point <= high: one `show` rounds all three.

    Bounds that float rounding put on the wrong side of the point are moved to it.
    """
    return show(point), show(min(low, point)), show(max(high, point))


def range_words(point: float, low: float, high: float, show: Show = short, more: str = "") -> str:
    """A point with its range as `0.25 (0.1 to 0.4)`; `more` is added inside the parentheses."""
    middle, least, most = in_range(point, low, high, show)
    return f"{middle} ({least} to {most}{f', {more}' if more else ''})"


def telling_digits(values: Sequence[float], least: int = 3, most: int = 6) -> int:
    """The fewest significant digits, from `least` to `most`, that print different values differently."""
    apart = [
        (one, other)
        for one, other in zip(sorted(values), sorted(values)[1:], strict=False)
        if not math.isclose(one, other, rel_tol=1e-9)
    ]
    for digits in range(least, most):
        if all(f"{one:.{digits}g}" != f"{other:.{digits}g}" for one, other in apart):
            return digits
    return most


def mean_words(mean: float, low: float, high: float, n: int, show: Show = short) -> str:
    """A mean over prompts as `0.25 (0.1 to 0.4, n = 20)`; one prompt has no interval: `0.25 (one prompt)`."""
    if n == 1:
        return f"{show(mean)} ({ONE_PROMPT})"
    return range_words(mean, low, high, show, f"n = {n:,}")


def format_duration(seconds: float, rough: bool = False) -> str:
    """`8 s`, `2 min 05 s` or `1 h 02 min`; an estimate is `rough`: `75 s`, `12 min` or `3.5 h`."""
    if rough and seconds >= 90:
        return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    if rough or seconds < 60:
        return f"{max(seconds, 1) if rough else seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(elapsed: float, share: float) -> str:
    """`about 6 min left` if the rest goes as fast as the `share` done in `elapsed` seconds; "" if nothing is done."""
    return f"about {format_duration(elapsed * (1 - share) / share, rough=True)} left" if share > 0 else ""


KIB = 2**10
MIB = 2**20


def format_bytes(size: float) -> str:
    """`12 bytes`, `812 KiB`, `3.12 GiB`: three digits in the largest binary unit that leaves a number above one."""
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < (1024 if unit == "bytes" else 1023.5):
            break
        size = size / 1024
        unit = larger
    if unit == "bytes" or abs(size) >= 100:
        return f"{size:,.0f} {unit}"
    return f"{size:.3g} {unit}"


def left_out(counts: Mapping[str, int]) -> tuple[str, ...]:
    """`3 images and 1 footnote were left out.`; empty if all counts are 0."""
    named = [f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items() if count]
    if not named:
        return ()
    verb = "was" if len(named) == 1 and named[0].startswith("1 ") else "were"
    return (f"{join_words(named)} {verb} left out.",)


def join_words(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


# An absolute path of at least two parts that is not inside a URL or a longer word.
PATH = re.compile(r"(?<![\w:/.])~?(?:/[\w.@+~=-]*[\w@+~=-]){2,}/?")


def hide_paths(text: str) -> str:
    """The text with every absolute path reduced to its last part."""
    return PATH.sub(lambda match: "…/" + match[0].rstrip("/").rsplit("/", 1)[-1], text)
