"""Changes to a method's decisions: tokens kept, dropped, merged or read by hand. Torch-free."""

from collections.abc import Collection, Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvlab.core.validation import Strict

RestoreKind = Literal["tokens", "drop", "merge", "heads", "apart", "evict", "read"]
OF_TOKENS = ("tokens", "drop", "merge")  # kinds that name tokens
Count = Annotated[int, Field(ge=0, lt=2**31)]


class Restore(Strict):
    """One change to a method's decisions, in the KV heads `heads` ((layer, head); None: all).

    - `tokens`: the prompt's tokens at `tokens` keep slots of their own, on top of the budget, and are always read.
    - `drop`: the prompt's tokens at `tokens` are evicted by the prompt's decision; other tokens take their slots.
    - `merge`: the prompt's tokens at `tokens` leave by the method's merging rule, or where it evicts tokens, merge into
      the kept slot with the most similar key; other tokens take their slots.
    - `heads`: nothing is evicted from these heads; they hold the full cache, and read all of it.
    - `apart`: slots that the prompt's decision would merge stay separate, on top of the budget.
    - `evict`: slots that would be merged, in the prompt or later, are evicted instead.
    - `read`: every decode step reads the slots of the prompt's tokens at `tokens` (none named: all slots), beside those
      that the sparse attention chooses. Slots stay or leave as without it.
    """

    kind: RestoreKind = "tokens"
    tokens: tuple[Count, ...] = ()
    heads: tuple[tuple[Count, Count], ...] | None = None

    @model_validator(mode="after")
    def _names_what_it_returns(self) -> "Restore":
        if self.kind != "read" and (self.kind in OF_TOKENS) != bool(self.tokens):
            raise ValueError("tokens are named where tokens are kept, dropped or merged, and only there")
        return self

    @property
    def description(self) -> str:
        """As in a run's name: `+ tokens 738-742 in layer 3 head 2`."""
        where = "" if self.heads is None else f" in {head_words(self.heads)}"
        if self.kind == "tokens":
            return f"+ {token_words(self.tokens)}{where}"
        if self.kind == "drop":
            return f"without {token_words(self.tokens)}{where}"
        if self.kind == "merge":
            return f"merging {token_words(self.tokens)}{where}"
        if self.kind == "read":
            return f"+ reading {token_words(self.tokens) if self.tokens else 'all slots'}{where}"
        if self.kind == "heads":
            return f"+ full cache{where or ' everywhere'}"
        return f"{'+ merged tokens apart' if self.kind == 'apart' else 'evicting instead of merging'}{where}"


def head_words(heads: Iterable[tuple[int, int]], named: int = 2) -> str:
    """`layer 3 head 2`, or for more than `named` heads their number and layers."""
    some = sorted(heads)
    if len(some) <= named:
        return " and ".join(f"layer {layer} head {head}" for layer, head in some)
    layers = sorted({layer for layer, _ in some})
    return f"{len(some)} heads of layer{'s' if len(layers) > 1 else ''} {spans(layers)}"


def token_words(tokens: Collection[int]) -> str:
    """`token 571`, or `tokens 738-742`."""
    return f"token{'s' if len(tokens) > 1 else ''} {spans(tokens)}"


def spans(numbers: Iterable[int]) -> str:
    """Increasing numbers as ranges: `3, 738-742`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
