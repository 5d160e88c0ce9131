"""Format token text and numbers for figures."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

from kvlab.common.formatting import format_bytes

MARKS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
AXES = {"live_bytes": "live bytes", "bytes_read": "bytes read by a decode step"}
SMALLEST_SHARE = 1e-5  # 0.001 %


def visible(text: str, limit: int = 24) -> str:
    """`token_text` with HTML escaped, for plotly labels only."""
    return html.escape(token_text(text, limit), quote=False)


def token_text(text: str, limit: int = 24) -> str:
    """A token's text with visible white space, truncated to `limit` characters."""
    shown = text.translate(MARKS) or "∅"
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def token_label(position: int, text: str, limit: int = 24) -> str:
    """Position and quoted text, so that digits of the text are not read as part of the position."""
    return f"{position} “{visible(text, limit)}”"


def token_labels(positions: Iterable[int], texts: list[str]) -> list[str]:
    """A unique label per position: `token_label`, or the position alone if there is no text."""
    return [token_label(place, texts[place]) if place < len(texts) else f"{place}" for place in positions]


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits, as a power of ten (2×10⁻⁷) only if very large or small."""
    if value is None or not math.isfinite(value):
        return "not recorded"
    if value and not 1e-4 <= abs(value) < 1e6:
        factor, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{float(factor):g}×10{str(int(exponent)).translate(RAISED)}"
    shown = f"{value:.{digits}g}"
    return f"{float(shown):,.0f}" if "e" in shown else shown


def two_digits(value: float) -> str:
    """A number with two significant digits."""
    return number(value, 2)


def percent(share: float | None) -> str:
    """A share as a percentage; tiny ones as `under 0.001 %`."""
    if share is None or not math.isfinite(share):
        return "not recorded"
    return "under 0.001 %" if 0 < abs(share) < SMALLEST_SHARE else f"{number(100 * share)} %"


def lost_share(share: float | None) -> str:
    """A lost share of attention as `3 % lost`, or `3 % gained` if negative."""
    if share is None or not math.isfinite(share):
        return "not recorded"
    return f"{percent(abs(share))} {'gained' if share < 0 else 'lost'}"


def byte_size(count: float | None) -> str:
    """Bytes as `format_bytes` writes them, or that they were not recorded."""
    return "not recorded" if count is None or not math.isfinite(count) else format_bytes(count)


def byte_unit(largest: float) -> tuple[float, str]:
    """(divisor, unit name) for an axis up to `largest` bytes."""
    for factor, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if largest >= factor:
            return factor, unit
    return 1, "bytes"


def with_spaces(name: str) -> str:
    """An identifier with spaces instead of underscores."""
    return name.replace("_", " ")


def shown_of(drawn: int, every: int, noun: str, which: str = "") -> str:
    """`Showing 60 of 211 tokens, the widest.`; empty if all are shown."""
    return "" if drawn >= every else f" Showing {drawn:,} of {every:,} {noun}s{which and ', '}{which}."


def plural(count: float, noun: str) -> str:
    """`1 merge`, `2 merges`, `1,204 merges`."""
    return f"{count:,.0f} {noun}" + ("" if count == 1 else "s")
