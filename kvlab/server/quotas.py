"""User quotas: the table `[limits]` of the lab's file, with entries per user."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kvlab.common.errors import UserError
from kvlab.common.validation import in_one_sentence
from kvlab.requests.compare import MOST_RUNS
from kvlab.server.settings import lab

MOST_QUEUED = 1000
Positive = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """Limits of one user; None: unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: Positive = Field(MOST_RUNS, description="runs per request")
    queued: Positive = Field(MOST_QUEUED, description="waiting and running jobs")
    tokens: Positive | None = Field(None, description="tokens per request: prompts and new tokens, over all runs")
    minutes: Annotated[float, Field(gt=0)] | None = Field(None, description="of compute in 24 hours")
    disk: Annotated[Amount, Field(ge=1)] | None = Field(None, description="bytes of the user's results")


class _Table(Limits):
    people: dict[str, dict[str, Any]] = {}


def limits_of(name: str) -> Limits:
    """The user's own limits if the file names them, else the general ones.

    Raises UserError if the lab's file is invalid.
    """
    settings = lab()
    if settings is None:
        return Limits()
    try:
        table = _Table.model_validate(settings.limits)
        everybody = table.model_dump(exclude={"people"})
        return Limits.model_validate(everybody | table.people.get(name, {}))
    except ValidationError as error:
        raise UserError(f"In the lab's file, [limits]: {in_one_sentence(error)}") from error


MOST = 10**15
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SPANS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def bytes_of(text: str) -> int:
    """Bytes from text such as 24GB, 512 MB or 800000; raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if match is None or not 0 < float(match[1]) * UNITS[match[2].upper()] <= MOST:
        raise UserError(f"{text[:40]!r} is no amount of bytes: write it like 24GB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def seconds_of(text: str) -> int:
    """Seconds from text such as 30d, 12h or 2w; raises UserError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*([hdw])\s*", text)
    if match is None:
        raise UserError(f"{text[:40]!r} is no span of time: write it like 30d, 12h or 2w.")
    return int(match[1]) * SPANS[match[2]]


def _written(value: object) -> object:
    return bytes_of(value) if isinstance(value, str) else value


Amount = Annotated[int, BeforeValidator(_written)]
