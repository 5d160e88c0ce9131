"""How long a preset takes at the size that the atlas asks for. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCALE = 16  # of the shape's layers and width, from which on the numbers below hold
# Seconds on one x86 core without loading, as `kvlab atlas fill` told them; texts a sixteenth, of kvmerger-table2 an
# eighth, as long.
MEASURED = {"zsmerge-fig3": 6.0, "zsmerge-table1": 26.0, "kvmerger-table2": 2.0, "keepkv-table1": 3.0}
SPREAD = 3.0  # another machine, or other work beside it, may take so many times more or less


def preset_seconds(preset: str, changes: Mapping[str, Any]) -> tuple[float, float] | None:
    """Seconds from and to; None for a preset or a size that was not measured."""
    seen = MEASURED.get(preset)
    if seen is None or int(changes.get("scale", 1)) < SCALE or int(changes.get("shorten", 1)) < 8:
        return None
    return seen / SPREAD, seen * SPREAD
