"""Compaction: copy valid slots into new tables so that evicted slots are freed."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract import FREE, Slots, gather
from kvlab.core.stores.code import Code


def pack(slots: Slots, order: Tensor, head_sets: Tensor | None, width: int, length: int, capacity: int) -> Slots:
    """New table (N, width, capacity) of some head sets, valid slots first, at most `length` per head.

    `order` (B, H, S) is that of the text, invalid slots last. Head set n is heads n * width, ... counted row by row;
    None selects all rows. Slots after the first `length` are invalid.
    """
    place = torch.arange(capacity, device=order.device)
    source = place.clamp_max(order.shape[-1] - 1)
    if head_sets is None:
        index = order[..., source]
        packed = slots.map(lambda tensor: gather(tensor, index))
    else:
        head = head_sets[:, None, None] * width + torch.arange(width, device=order.device)[:, None]
        # (N, width, 1)
        row = head // order.shape[1]
        head = head % order.shape[1]
        index = order[row, head, source]
        packed = slots.map(lambda tensor: tensor[row, head, index])
    packed.position.masked_fill_(place >= length, FREE)
    return packed


@dataclass(frozen=True)
class Squeeze:
    """Groups of each head that stay and that are rebuilt (B, H, n), and the slots of both."""

    stay: Tensor
    go: Tensor
    kept: Tensor  # (B, H, n) slots of groups that stay
    scattered: Tensor  # slots of groups that are re-encoded
    real_first: Tensor  # order of `scattered`: valid slots first, in whole groups
    index: Tensor  # (B, H, n) slots in their new order
    real: Tensor  # which of the re-encoded slots are valid

    @classmethod
    def plan(cls, valid: Tensor, group: int, occupied: int, count: int) -> "Squeeze | None":
        """Make room for `count` slots among `valid` (B, H, S), at most `occupied` per head; None if impossible."""
        used = valid.shape[2]
        groups = valid.shape[2] // group
        most = min(occupied, used)  # bound per head; its emptiest groups have at most their share of valid slots
        enough = ((emptiest, -(-emptiest * most // used)) for emptiest in range(1, groups + 1))
        found = next(((many, few) for many, few in enough if (many - few) * group >= count), None)
        if found is None:
            return None
        many, few = found
        order = valid.unflatten(2, (-1, group)).sum(-1).argsort(dim=-1, descending=True, stable=True)
        stay = order[..., : groups - many]
        go = order[..., groups - many :]
        inside = torch.arange(group, device=order.device)
        kept, scattered = ((chosen[..., None] * group + inside).flatten(2) for chosen in (stay, go))
        real_first = gather(valid, scattered).view(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        real_first = real_first[..., : few * group]
        index = torch.cat([kept, gather(scattered, real_first)], 2)
        return cls(stay, go, kept, scattered, real_first, index, gather(valid, index[..., kept.shape[2] :]))

    def coded(self, code: Code, stored: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
        """Codes `stored` of states of `width` in the new order; groups with shared scales are re-encoded."""
        if code.group == 1:
            return {name: gather(tensor, self.index) for name, tensor in stored.items()}
        stay, go = (
            {name: gather(tensor, groups if name in code.shared else slots) for name, tensor in stored.items()}
            for groups, slots in ((self.stay, self.kept), (self.go, self.scattered))
        )
        anew = code.encode(gather(code.decode(go, width), self.real_first), self.real)
        return {name: torch.cat([stay[name], anew[name]], 2) for name in stored}
