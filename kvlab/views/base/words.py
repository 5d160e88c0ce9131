"""Token texts, numbers, amounts, contrasts and counts in words, with words of their own for none, all and equal."""

import html
import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from pydantic import JsonValue

from kvlab.common.formatting import format_bytes, join_words
from kvlab.core import FULL, parse_spec

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


two_digits = partial(number, digits=2)  # significant ones


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


MOST_NAMES = 3  # in one sentence
# (upper bound, words before "of")
SHARES = (
    (0.02, "almost none"), (0.175, "a small part"), (0.225, "about a fifth"), (0.29, "about a quarter"),
    (0.37, "about a third"), (0.45, "less than half"), (0.55, "about half"), (0.9, "most"),
)  # fmt: skip
TIMES = ((0.02, "almost never"), (0.5, "sometimes"), (0.9, "mostly"))
LIKENESS = ((-0.2, "opposite"), (0.2, "unrelated"), (0.5, "a little alike"), (0.8, "alike"))
ERRORS = ((0.01, "almost"), (0.1, "nearly"), (0.5, "only roughly"))
UNKNOWN = "an unknown part"
NOT_RECORDED = "What this shows was not recorded."
EXACT = 1e-9  # shares that differ by less from 0 or 1 are none or all
ALIKE = 5e-3  # values that differ by less, relative to the larger one, are called equal


def part(share: float) -> str:
    """A share as words before "of": none, almost none, ..., most, nearly all, all."""
    if not math.isfinite(share):
        return UNKNOWN
    if share <= EXACT:
        return "none"
    return "all" if share >= 1 - EXACT else _word(share, SHARES, "nearly all")


def often(share: float) -> str:
    """A share of cases as never, sometimes, ..., always."""
    if not math.isfinite(share):
        return "an unknown number of times"
    if share <= EXACT:
        return "never"
    return "always" if share >= 1 - EXACT else _word(share, TIMES, "nearly always")


def alike(cosine: float) -> str:
    """A cosine as opposite, unrelated, a little alike, alike or very much alike."""
    return _word(cosine, LIKENESS, "very much alike") if math.isfinite(cosine) else "alike to an unknown degree"


def closeness(error: float) -> str:
    """How well an output with this relative error follows another: exactly, almost, nearly, only roughly, hardly."""
    return "exactly" if error <= EXACT else _word(error, ERRORS, "hardly")


def memory_share(share: float) -> str:
    """Bytes relative to the full cache's, as words after "takes"."""
    if not math.isfinite(share):
        return "an unknown amount of memory"
    if share > 1.02:
        return "more memory than the full cache"
    return "about as much memory as the full cache" if share >= 0.98 else f"{part(share)} of the full cache's memory"


def comparison_words(value: float, other: float, more: str, less: str, same: str, tolerance: float = 0.02) -> str:
    """The words for a value above, below, or within a relative `tolerance` of another one."""
    if math.isclose(value, other, rel_tol=tolerance, abs_tol=EXACT):
        return same
    return more if value > other else less


def some_of(count: int, whole: int, noun: str) -> str:
    """`none of the 6 runs`, `2 of the 6 runs`, `all 6 runs`; of few `both runs`, `the only run`, `no run`."""
    if not count:
        return f"none of the {whole:,} {noun}s" if whole > 1 else f"no {noun}"
    if count == whole:
        return f"both {noun}s" if whole == 2 else f"all {whole:,} {noun}s" if whole > 1 else f"the only {noun}"
    return f"{count:,} of the {whole:,} {noun}s"


def join_names(names: Sequence[object]) -> str:
    """Up to `MOST_NAMES` names, and how many more."""
    texts = [str(name) for name in names]
    return join_words(texts if len(texts) <= MOST_NAMES else [*texts[: MOST_NAMES - 1], f"{len(texts) - 2} others"])


def contrast(
    values: pd.Series, template: str, equal: str, alone: str = "", nothing: str = "Nothing was recorded."
) -> str:
    """A sentence on the least and the most of named values.

    Args:
        values: indexed by name; empty ones are left out.
        told: the sentence, with `{least}` and `{most}` for the names; ties are named together.
        equal: the sentence where all values are equal.
        alone: the sentence on a single value, with `{only}` for its name; default: `equal`.
        nothing: the sentence without values.
    """
    known = values[np.isfinite(values.astype(float))].astype(float)
    if known.empty:
        return nothing
    if len(known) == 1 and alone:
        return alone.format(only=known.index[0])
    low = float(known.min())
    high = float(known.max())
    if near(low, high):
        return equal
    least, most = ([name for name, value in known.items() if near(value, edge)] for edge in (low, high))
    return template.format(least=join_names(least), most=join_names(most))


def are_known(*values: float) -> bool:
    """Whether all values are finite, so that something can be said of them."""
    return all(math.isfinite(value) for value in values)


def near(value: float, other: float) -> bool:
    """Whether two values are called equal."""
    return math.isclose(value, other, rel_tol=ALIKE, abs_tol=EXACT)


def sentence(words: str) -> str:
    """The words with a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith(".") else ".")


def _word(value: float, words: Sequence[tuple[float, str]], beyond: str) -> str:
    return next((word for bound, word in words if value < bound), beyond)


def arm_text(arm: str) -> str:
    """An arm as people say it: of a composition, whose selection and whose settling."""
    parts = composition(arm)
    return f"{parts['score']} settled by {parts['settle']}" if {"score", "settle"} <= parts.keys() else arm


def composition(arm: str) -> dict[str, JsonValue]:
    """The parts of an arm such as `compose:score=h2o:settle=keepkv`; empty for a method of its own."""
    return parse_spec(arm)[1] if arm.startswith("compose:") else {}


def row_names(frame: pd.DataFrame) -> list[str]:
    """The names of rows with columns method, arm and asked (the budget)."""
    return [
        "full cache" if method == FULL.method else f"{arm_text(arm)} {asked}"
        for method, arm, asked in zip(frame["method"], frame["arm"], frame["asked"], strict=True)
    ]
