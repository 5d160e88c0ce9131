"""Disk rules of the runs folder (table `[disk]` of the lab's file), and the disk's free space."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.common.validation import in_one_sentence
from kvlab.server.quotas import Amount, seconds_of
from kvlab.server.settings import lab

LEAST_FREE = 500 * 10**6


def _span(value: object) -> object:
    return seconds_of(value) if isinstance(value, str) else value


class DiskRules(BaseModel):
    """Limits of the folder, and when old recordings lose their arrays. Without a file the disk is the limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: Annotated[Amount, Field(ge=1)] | None = Field(None, description="bytes of the folder; none: the disk's")
    warn: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="share of the limit from which a warning is shown"
    )
    free: Annotated[Amount, Field(ge=0)] = Field(LEAST_FREE, description="bytes of the disk that stay free")
    thin_older_than: Annotated[int, BeforeValidator(_span)] | None = Field(
        None, description="such as 30d: older recordings lose their arrays once the folder is near its limit"
    )


class DiskUsage(BaseModel):
    """Disk usage of the folder and its limits."""

    model_config = ConfigDict(frozen=True)

    used: int
    free: int
    total: int
    rules: DiskRules

    @property
    def full(self) -> str:
        """What is used up, as a clause; empty if there is space."""
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
