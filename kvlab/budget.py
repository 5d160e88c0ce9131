"""How much of the cache a method may keep, in an explicit unit: a fraction of the prompt or slots per KV head."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.errors import UserError
from kvlab.given import shown

UNLIMITED = 2**30


@dataclass(frozen=True)
class Budget:
    """A fraction in (0, 1] of the prompt's tokens (`float`), or a number of slots per KV head (`int`).

    The fraction 1.0 means that nothing is ever dropped, also while decoding; any smaller fraction is resolved once, on
    the first prefill, and then holds for the rest of the run.
    """

    amount: float | int

    def __post_init__(self) -> None:
        if isinstance(self.amount, bool) or not isinstance(self.amount, int | float):
            raise UserError(_WHAT_A_BUDGET_IS.format(shown(self.amount)))
        if isinstance(self.amount, int) and not 1 <= self.amount < 2**63:  # what the index of runs can hold
            raise UserError(_WHAT_A_BUDGET_IS.format(shown(self.amount)))
        if isinstance(self.amount, float) and not 0 < self.amount <= 1:
            raise UserError(_WHAT_A_BUDGET_IS.format(shown(self.amount)))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget from the command line or a form: `0.2`, `20%`, `1.0` are fractions; `128` is slots per KV head.

        Raises UserError for anything else.
        """
        text = text.strip()
        try:
            if text.endswith("%"):
                return cls(float(text[:-1]) / 100)
            return cls(int(text)) if text.lstrip("+").isdecimal() and text.isascii() else cls(float(text))
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(_WHAT_A_BUDGET_IS.format(shown(text))) from None

    def slots(self, tokens: int) -> int:
        """Slots per KV head for a prompt of `tokens` tokens; at least 1."""
        if isinstance(self.amount, int):
            return min(self.amount, UNLIMITED)
        return UNLIMITED if self.amount == 1 else max(1, round(self.amount * tokens))


_WHAT_A_BUDGET_IS = (
    "The budget {} cannot be used: give a fraction of the prompt between 0 and 1 (such as 0.2 or 20%), "
    "or a whole number of slots per KV head of at least 1 (such as 128)."
)
