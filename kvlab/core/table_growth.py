"""How many free slots a growing table gets. Torch-free: a plan of memory uses the same rule."""

# slots
BLOCK = 64
SMALLEST_BLOCK = 4
BLOCK_SHARE = 40
GROWTH = 100


def room_to_grow(slots: int) -> int:
    """Free slots given to a growing table of `slots`: a block and 1 %, so that copies stay rare at any length.

    The block is 2.5 % of a small table: a fixed one of 64 made a compressed cache of 260 slots 25 % larger.
    """
    return min(max(slots // BLOCK_SHARE, SMALLEST_BLOCK), BLOCK) + slots // GROWTH
