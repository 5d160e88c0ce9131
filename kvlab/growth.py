"""How a growing slot table gets its room. Shared by the cache, which does it, and by plans, which foresee it."""

from __future__ import annotations

BLOCK = 64
GROWTH = 50


def room_to_grow(slots: int) -> int:
    """Free slots given to a growing table of `slots`: a block and 2 %, so that copies stay rare at any length."""
    return BLOCK + slots // GROWTH
