"""Which store the name `auto` means. Free of torch: forms plan with it."""

from __future__ import annotations

from kvlab.requests.budget import BYTE_SHARE, Budget

NATIVE, AUTO = "native", "auto"
MANY = 1 / 3  # of the bytes: from there on 8 bits hold enough slots, and 4 would be too coarse


def meant_store(name: str, budget: Budget) -> str:
    """The name itself; of `auto` what the budget makes of it: more slots help only where bytes are what is limited.

    A size in bytes says nothing of its share, and is taken for a small one.
    """
    if name != AUTO:
        return name
    many = budget.unit == BYTE_SHARE and budget.number >= MANY
    return NATIVE if not isinstance(budget.amount, str) else "int8" if many else "lean4"
