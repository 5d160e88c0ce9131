"""Running out of memory, as a result and not as a crash."""

from __future__ import annotations

import psutil
import torch

from kvlab.engine.out_of_memory import give_back, is_out_of_memory

__all__ = ["check_room", "free_bytes", "give_back", "is_out_of_memory"]

HOST_SHARE = 0.8  # of the free host memory: taking the last of it gets a process killed instead of refused


def free_bytes(device: torch.device) -> int:
    """Memory a benchmark may still take on this device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(HOST_SHARE * psutil.virtual_memory().available)


def check_room(needed: int, device: torch.device) -> None:
    """Raises MemoryError where the host would kill the process; a GPU says so itself, so nothing is checked there."""
    if device.type != "cuda" and needed > (free := free_bytes(device)):
        raise MemoryError(f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB may be used")
