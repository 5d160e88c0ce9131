"""Texts of the board's cells: bytes, verdict, KL, and what is said under the pointer."""

from __future__ import annotations

import html
from typing import Any

import pandas as pd

from kvlab.views.base.palette import FATES
from kvlab.views.base.words import byte_size, number, percent, token_text, visible
from kvlab.views.frames.verdict import MOST_CHARACTERS

# with more columns than these, cells shorten the KLs, and show one KL only
ROOMY = 2
CROWDED = 4


def bytes_text(line: Any, limit: int = 1000) -> str:
    """Live bytes with their excess over the budget, or their share of the full cache's if there is no budget.

    Texts longer than `limit` characters are shortened to the bytes alone, or to ""; "" if not recorded.
    """
    if pd.isna(line.live_bytes):
        return ""
    size = byte_size(line.live_bytes)
    above = getattr(line, "over_budget", None)
    if above is not None and pd.notna(above):
        longer = f"{size} ({excess_text(above)})"
    else:
        longer = size if pd.isna(line.live_ratio) else f"{size} ({number(100 * line.live_ratio, 2)} % of full)"
    return next((words for words in (longer, size) if len(words) <= limit), "")


def excess_text(share: float) -> str:
    """Excess over the budget, such as `+14 %`."""
    return f"{'+' if share >= 0 else ''}{number(100 * share, 2)} %"


def verdict_text(line: Any, limit: int = 40) -> str:
    """A verdict as plain text, such as `nearly: 4 for 3` or `wrong: … 12.`

    Quotes at most `limit` characters of what was written.
    """
    if line.verdict == "right":
        return f"right, from token {line.at + 1}" if line.late else "right"
    if line.verdict == "nearly":
        if not line.wrong:
            return f"nearly: stops before {_said(line.expected, limit)}"
        if not line.expected:
            return f"nearly: goes on with {_said(line.wrong, limit)}"
        return f"nearly: {_said(line.wrong, limit)} for {_said(line.expected, limit)}"
    if line.verdict == "wrong":
        return f"wrong: {_said(line.wrote, limit)}" if line.wrote else "wrong: only spaces"
    return "not finished"


def closeness_text(line: Any, columns: int) -> str:
    """The two KLs; without the first, the second alone."""
    if pd.isna(line.mean_kl):
        return ""
    everywhere = number(line.mean_kl, 2)
    if pd.isna(line.kl_answer):
        return f"KL {everywhere} all" if columns <= CROWDED else ""
    here = number(line.kl_answer, 2)
    if columns > CROWDED:
        return f"KL {here}"
    return f"KL {here} answer · {everywhere} all" if columns <= ROOMY else f"KL {here} | {everywhere}"


def hover_text(line: Any) -> str:
    """Hover text of a cell."""
    share = "" if pd.isna(line.live_ratio) else f", {percent(line.live_ratio)} of the full cache's"
    known = pd.notna(getattr(line, "over_budget", None))
    above = f", {excess_text(line.over_budget)} over the budget" if known else ""
    here = "not measured" if pd.isna(line.kl_answer) else f"{number(line.kl_answer)} nats per token"
    everywhere = "not measured" if pd.isna(line.mean_kl) else f"{number(line.mean_kl)} nats per token"
    size = "not recorded" if pd.isna(line.live_bytes) else byte_size(line.live_bytes)
    back = getattr(line, "restored", "")
    wrote = f"wrote {_said(line.wrote, MOST_CHARACTERS)}" if line.wrote else "wrote nothing but spaces"
    parts = [
        f"<b>{visible(line.label, 60)}</b>: {html.escape(verdict_text(line), quote=False)}",
        html.escape(wrote, quote=False),
        f"live bytes {size}{share}{above}",
        f"KL on the answer {here}, on all {everywhere}",
        *([back] if back else []),
    ]
    return "<br>".join(parts).replace("·", " ")


def fate_text(line: Any) -> str:
    """Hover text of a token of the fact: the share of heads by fate."""
    shares = ", ".join(f"{getattr(line, fate):.0%} {name}" for fate, (name, *_) in FATES.items())
    return f"{visible(line.text, 40)} (token {line.position}): {shares} of heads"


def _said(text: str, limit: int) -> str:
    """A token or words without leading space."""
    return token_text(text.strip(), limit).replace("·", " ") if text.strip() else "a space"
