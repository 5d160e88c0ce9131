"""Whether the disk of a runs folder has space for more."""

from __future__ import annotations

import shutil
from pathlib import Path

from kvlab.common.formatting import format_bytes
from kvlab.core.errors import UserError

LEAST_FREE = 500 * 10**6  # on a small disk a twentieth of it


def full_disk(root: Path, margin: int = 1) -> str:
    """A clause if the disk has less than `margin` times the least free space; else ""."""
    disk = shutil.disk_usage(root)
    if disk.free > margin * min(LEAST_FREE, disk.total // 20):
        return ""
    return f"the disk has {format_bytes(disk.free)} left of {format_bytes(disk.total)}"


def check_disk(root: Path) -> None:
    """Raises UserError if the disk is full."""
    if full := full_disk(root):
        raise UserError(f"Nothing more is run here: {full}. Delete or thin recordings.")


def disk_warning(root: Path) -> str:
    """A sentence if the disk is full or nearly full; else ""."""
    if full := full_disk(root, margin=2):
        return f"On the machine of these runs {full}: delete or thin recordings soon. When it is full, nothing is run."
    return ""
