"""Amounts as people write them: bytes, and spans of time."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from kvlab.common.errors import UserError

MOST = 10**15
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SPANS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def bytes_of(text: str) -> int:
    """Bytes in words such as 24GB, 512 MB or 800000; raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if match is None or not 0 < float(match[1]) * UNITS[match[2].upper()] <= MOST:
        raise UserError(f"{text[:40]!r} is no amount of bytes: write it like 24GB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def seconds_of(text: str) -> int:
    """Seconds in words such as 30d, 12h or 2w; raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*([hdw])\s*", text)
    if match is None:
        raise UserError(f"{text[:40]!r} is no span of time: write it like 30d, 12h or 2w.")
    return int(match[1]) * SPANS[match[2]]


def _written(given: object) -> object:
    return bytes_of(given) if isinstance(given, str) else given


Amount = Annotated[int, BeforeValidator(_written)]
