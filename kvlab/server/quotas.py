"""Quotas of users and of the disk: the tables `[limits]` and `[disk]` of the lab's file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from kvlab.common.formatting import format_bytes
from kvlab.core.errors import UserError
from kvlab.core.validation import Frozen, Strict, in_one_sentence
from kvlab.requests.compare import MOST_RUNS
from kvlab.server.settings import lab

MOST_QUEUED = 1000
LEAST_FREE = 500 * 10**6
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


def _span(value: object) -> object:
    return seconds_of(value) if isinstance(value, str) else value


Positive = Annotated[int, Field(ge=1)]


class Limits(Strict):
    """Limits of one user; None: unlimited."""

    runs: Positive = Field(MOST_RUNS, description="runs per request")
    queued: Positive = Field(MOST_QUEUED, description="waiting and running jobs")
    tokens: Positive | None = Field(None, description="tokens per request: prompts and new tokens, over all runs")
    minutes: Annotated[float, Field(gt=0)] | None = Field(None, description="of compute in 24 hours")
    disk: Annotated[Amount, Field(ge=1)] | None = Field(None, description="bytes of the user's results")


class _Table(Limits):
    people: dict[str, dict[str, Any]] = Field(default_factory=dict)


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


class DiskRules(Strict):
    """Limits of the folder, and when old recordings lose their arrays. Without a file the disk is the limit."""

    limit: Annotated[Amount, Field(ge=1)] | None = Field(None, description="bytes of the folder; none: the disk's")
    warn: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="share of the limit from which a warning is shown"
    )
    free: Annotated[Amount, Field(ge=0)] = Field(LEAST_FREE, description="bytes of the disk that stay free")
    thin_older_than: Annotated[int, BeforeValidator(_span)] | None = Field(
        None, description="such as 30d: older recordings lose their arrays once the folder is near its limit"
    )


class DiskUsage(Frozen):
    """Disk usage of the folder and its limits."""

    used: int
    free: int
    total: int
    rules: DiskRules

    @property
    def full(self) -> str:
        """Name the exhausted quota in a clause; empty if there is space."""
        limit = self.rules.limit
        if limit is not None and self.used >= limit:
            return f"the folder of runs takes {format_bytes(self.used)}, and its limit is {format_bytes(limit)}"
        if self.free <= min(self.rules.free, self.total // 20):
            return f"the disk has {format_bytes(self.free)} left of {format_bytes(self.total)}"
        return ""

    @property
    def warning(self) -> str:
        """A sentence if the folder is full or nearly full; else empty."""
        if self.full:
            return f"Nothing more is run here: {self.full}. Delete or thin recordings."
        limit, near = self.rules.limit, 2 * min(self.rules.free, self.total // 20)
        if limit is not None and self.used >= self.rules.warn * limit:
            used, most = format_bytes(self.used), format_bytes(limit)
            return f"The folder of runs takes {used} of at most {most}: delete or thin soon."
        if self.free <= near:
            return f"The disk has {format_bytes(self.free)} left of {format_bytes(self.total)}: delete or thin soon."
        return ""


def disk_rules() -> DiskRules:
    """The rules of this lab. Raises UserError if the lab's file is invalid."""
    settings = lab()
    try:
        return DiskRules() if settings is None else DiskRules.model_validate(settings.disk)
    except ValidationError as error:
        raise UserError(f"In the lab's file, [disk]: {in_one_sentence(error)}") from error


def disk_usage_of(root: Path, used: int) -> DiskUsage:
    """Usage of a folder that takes `used` bytes."""
    disk = shutil.disk_usage(root)
    return DiskUsage(used=used, free=disk.free, total=disk.total, rules=disk_rules())
