"""The budget of a method in an explicit unit: a share of the prompt, slots per KV head, or bytes."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvlab.core.errors import UserError
from kvlab.core.validation import quote_value

UNLIMITED = 2**30
ROUNDING = 1e-9  # .29 * 100 is a little less than 29 in floating point
Amount = float | int | str

FRACTION = "fraction"
SLOTS = "slots"
BYTE_SHARE = "share of bytes"
BYTES = "bytes"
_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SHARE = re.compile(r"(\d+\.?\d*|\.\d+)%B")
_SIZE = re.compile(rf"(\d+\.?\d*|\.\d+)({'|'.join(_SIZES)})")


@dataclass(frozen=True)
class Sizes:
    """Bytes of the slots of one KV head, for budgets given in bytes.

    At most `native` slots are held natively at a time, at `slot` bytes each; the others are packed, at `packed` each.
    """

    token: int  # a token's key and value in the full cache, as the model made them
    slot: int  # a native slot, metadata included
    packed: float  # a packed slot, with metadata and its part of shared data
    native: int = UNLIMITED
    beside: int = 0  # bytes of a head apart from its slots
    heads: int = 1  # heads of all layers and rows, which share a number of bytes

    def bytes_of(self, slots: int) -> float:
        """The most bytes this many slots take."""
        native = min(slots, self.native)
        return self.beside + self.slot * native + self.packed * (slots - native)


@dataclass(frozen=True)
class Budget:
    """A fraction in (0, 1] of the prompt's tokens (`float`), slots per KV head (`int`), or bytes (`str`).

    The fraction 1.0 means that nothing is ever dropped, also while decoding; a smaller one is resolved once, on the
    first prefill, for the rest of the run. `10%B` is that share of the native size of the prompt's keys and values,
    `64MiB` a size of the whole cache; everything a slot takes counts.
    """

    amount: Amount
    unit: str = field(init=False, repr=False, compare=False)  # `fraction`, `slots`, `share of bytes` or `bytes`
    number: float = field(init=False, repr=False, compare=False)  # the amount in its unit

    def __post_init__(self) -> None:
        amount = self.amount
        number = 0.0
        if not isinstance(amount, str):
            unit = SLOTS if isinstance(amount, int) else FRACTION
            most = 2**63 - 1 if unit == SLOTS else 1  # what the index of runs can hold
            if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount <= most:
                number = float(amount)
        elif match := _SHARE.fullmatch(amount):
            unit = BYTE_SHARE
            share = float(match[1]) / 100
            number = share if share <= 1 else 0.0
        else:
            unit = BYTES
            match = _SIZE.fullmatch(amount)
            size = float(match[1]) * _SIZES[match[2]] if match else 0.0
            number = size if 1 <= size < 2**63 else 0.0
        if not number:
            raise UserError(_WHAT_A_BUDGET_IS.format(quote_value(amount)))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "number", number)

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """A budget from text: `0.2`, `20%`, `1.0` are fractions; `128` is slots per KV head; `20%B`, `64MiB` are bytes.

        Raises UserError for anything else.
        """
        text = "".join(text.split())
        try:
            if text.endswith("B"):
                return cls(text)
            if text.endswith("%"):
                return cls(float(text[:-1]) / 100)
            return cls(int(text)) if text.lstrip("+").isdecimal() and text.isascii() else cls(float(text))
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(_WHAT_A_BUDGET_IS.format(quote_value(text))) from None

    @classmethod
    def from_number(cls, number: float, unit: str) -> "Budget":
        """The budget from its number and unit in tables."""
        if unit == BYTE_SHARE:
            return cls(f"{100 * number:g}%B")
        return cls(int(number)) if unit == SLOTS else cls(f"{number:.0f}B") if unit == BYTES else cls(float(number))

    @property
    def description(self) -> str:
        """`20 %`, `128 slots`, `20 % of the bytes` or `64 MiB`."""
        if isinstance(self.amount, str):
            found = _SIZE.fullmatch(self.amount)
            return f"{found[1]} {found[2]}" if found else f"{100 * self.number:g} % of the bytes"
        return f"{self.amount} slots" if isinstance(self.amount, int) else f"{100 * self.amount:g} %"

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever dropped."""
        return self.amount == 1 and isinstance(self.amount, float)

    def slots(self, tokens: int, sizes: Sizes | None = None) -> int:
        """Slots per KV head for a prompt of `tokens` tokens, at least 1. Budgets in bytes need `sizes`."""
        if isinstance(self.amount, str):
            if sizes is None:
                raise UserError(
                    f"A budget in bytes ({self.description}) cannot be used here: give a fraction or slots."
                )
            size = self.number * sizes.token * tokens if self.unit == BYTE_SHARE else self.number / sizes.heads
            # The most slots that never take more than `size` bytes.
            room = size - sizes.beside
            slots = math.floor(room / sizes.slot)
            if slots > sizes.native:
                slots = sizes.native + math.floor((room - sizes.native * sizes.slot) / sizes.packed)
            return max(1, slots)
        if isinstance(self.amount, int):
            return min(self.amount, UNLIMITED)
        # Rounded down, as in the authors' code, so that the budget is never exceeded.
        return UNLIMITED if self.amount == 1 else max(1, math.floor(self.amount * tokens + ROUNDING))


_WHAT_A_BUDGET_IS = (
    "The budget {} cannot be used: give a fraction of the prompt between 0 and 1 (such as 0.2 or 20%), "
    "a whole number of slots per KV head of at least 1 (such as 128), or bytes (such as 10%B or 64MiB)."
)


def unbounded_note(titles: Sequence[str], budgets: Sequence[Budget]) -> str:
    """A sentence on methods that take no budget if one in bytes was given; else empty."""
    byte_budgets = [budget.description for budget in budgets if isinstance(budget.amount, str)]
    if not titles or not byte_budgets:
        return ""
    they = "takes no budget: it" if len(titles) == 1 else "take no budget: each"
    return f"{' and '.join(titles)} {they} holds as many bytes as it needs, whatever {' and '.join(byte_budgets)} is."


def window_note(title: str, window: int, slots: int, tokens: int) -> str:
    """A sentence if the method's own window takes up the whole budget; else empty."""
    if slots > window or slots >= tokens or not window:
        return ""
    return (
        f"The budget of {slots:,} slots per head does not exceed the observation window of {window:,}: {title} keeps "
        f"the last {slots:,} tokens and nothing else, as a local window does."
    )


NATIVE = "native"
AUTO = "auto"
ADAPTIVE = "adaptive"
# Stores that depend on the budget: (share of the bytes from which the next one holds, store). Fewer bits make room for
# more slots, which helps until rounding costs more than the missing slots do. `auto` is the older rule, kept because
# saved runs name it; `adaptive` was chosen on SmolLM2 and mini (kvlab/core/methods/merging/exactmerge2.md).
STORE_RULES = {
    AUTO: ((1 / 3, "lean4"), (math.inf, "int8")),
    ADAPTIVE: ((0.035, "centred3"), (0.08, "centred4"), (0.15, "centred5"), (1 / 3, "centred6"), (math.inf, "int8")),
}
SMALL_SHARE = 0.05  # what a size in bytes counts as


def resolve_store(name: str, budget: Budget) -> str:
    """The store's name; `auto` and `adaptive` depend on the budget, and are native for one that is not in bytes.

    A method without a budget has none in bytes, whatever was asked: callers pass an unlimited one.
    """
    if name not in STORE_RULES:
        return name
    if not isinstance(budget.amount, str):
        return NATIVE
    share = budget.number if budget.unit == BYTE_SHARE else SMALL_SHARE
    return next(store for end, store in STORE_RULES[name] if share < end)
