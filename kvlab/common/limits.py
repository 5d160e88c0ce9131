"""Limits of the engine that a plan needs too."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_under_way: ContextVar[bool] = ContextVar("forward_pass", default=False)


def is_under_way() -> bool:
    """Whether the caller was called from within a forward pass."""
    return _under_way.get()


@contextmanager
def under_way() -> Iterator[None]:
    """Mark what is called inside as called from within a forward pass."""
    token = _under_way.set(True)
    try:
        yield
    finally:
        _under_way.reset(token)


# The probe: last rows of the prompt whose attention is kept (limited in `kvlab.requests.recording`).
PROMPT_ROWS = 64
# Tokens of the continuation that the probe reads.
MOST_FUTURE = 64
# Queries scored at a time against all slots: `kvlab.core.attention.slot_attention.ROW_BLOCK`, held equal by a test.
ROW_BLOCK = 256
# Readings of speed in turns once all runs are recorded, how many steps each times, and the most of the time that the
# comparison took so far they may take: turns that would take more are left out. One turn of at most `SHORT_TURN`
# seconds is always taken, since a rate from a single reading is not shown.
TURNS = 3
TIMED_STEPS = 5
TURNS_SHARE = 0.3
SHORT_TURN = 20.0


def turns_within(allowed: float, turn: float) -> int:
    """Number of turns of `turn` seconds each that fit in about `allowed` seconds."""
    least = 1 if turn <= SHORT_TURN else 0
    return min(TURNS, max(least, int(allowed / max(turn, 1e-9))))
