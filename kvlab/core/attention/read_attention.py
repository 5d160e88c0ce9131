"""Attention of one query over the slots that sparse attention chose: gathered, so that no other slot is read."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from kvlab.core.attention.kernels import attention_over_chosen
from kvlab.core.attention.slot_attention import softmax_beside
from kvlab.core.contract.sparse_attention import Chosen, Held
from kvlab.core.stores.quantized_states import States, states_at

BLOCK_BYTES = 2**20
LEAST_BLOCK = 64


@dataclass(frozen=True)
class SlotsRead:
    """Slots (B, H, U, k) that one step read, with U 1 or G, and their attention (B, H, G, k)."""

    slots: Tensor
    read: Tensor  # (B, H, U, k) bool: false where a shorter set is padded
    mass: Tensor

    def mass_of(self, slots: int) -> Tensor:
        """Attention (B, H, S) of a table of `slots`, mean over the group; 0 where nothing was read."""
        mean = self.mass / self.mass.shape[2]
        if self.slots.shape[2] == 1:
            mean = mean.sum(2, keepdim=True)
        spread = mean.new_zeros(*mean.shape[:2], slots)
        return spread.scatter_add_(2, self.slots.flatten(2), mean.flatten(2))

    def share_read(self, slots: int) -> Tensor:
        """Share (B, H, S) of the group's query heads that read each slot of a table of `slots`."""
        batch, heads, sets = self.slots.shape[:3]
        was_read = torch.zeros(batch, heads, sets, slots, device=self.slots.device)
        return was_read.scatter_reduce_(3, self.slots, self.read.float(), "amax").mean(2)


def attend_chosen(query: Tensor, held: Held, chosen: Chosen, sinks: Tensor | None) -> tuple[Tensor, SlotsRead]:
    """Output (B, Hq, 1, d) of queries (B, H, G, d) over the chosen slots, and what was read.

    softmax(q k scaling + log_mass + log_weight) v: importance weights and stand-ins of what was not read enter as log
    mass does. `sinks` (B, H, G) are logits of learned slots without a value.
    """
    slots = chosen.slots
    weight = chosen.log_weight
    read = torch.ones(slots.shape, dtype=torch.bool, device=slots.device) if weight is None else ~torch.isneginf(weight)
    bias = weight
    if held.bias is not None:  # log mass of the chosen slots, (B, H, 1 or G, k)
        sets = slots.shape[2]
        wide = max(sets, held.bias.shape[2])
        bias = held.bias.expand(-1, -1, wide, -1).gather(3, slots.expand(-1, -1, wide, -1))
        visible = ~torch.isneginf(bias)
        read = read & (visible if sets == wide else visible.any(2, keepdim=True))
        bias = bias if weight is None else bias + weight
    # The fused kernel reads whole tensors: not packed, no stand-ins, one bias per set of slots.
    plain = sinks is None and chosen.keys is None and chosen.estimate is None and held.softcap is None
    plain = plain and (bias is None or bias.shape == slots.shape)
    fused = None
    if plain and isinstance(held.keys, Tensor) and isinstance(held.values, Tensor):
        fused = attention_over_chosen(query, held.keys, held.values, slots, bias, held.scaling)
    output, mass = _gathered_attention(query, held, chosen, bias, sinks) if fused is None else fused
    return output.flatten(1, 2)[:, :, None].to(query.dtype), SlotsRead(chosen.slots, read, mass)


def _gathered_attention(
    query: Tensor, held: Held, chosen: Chosen, bias: Tensor | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(output (B, H, G, d) float32, attention of the chosen slots (B, H, G, k))."""
    size = chosen.slots.shape[3]
    if chosen.slots.device.type == "cpu":  # as many as stay in its caches, as fresh memory costs more than reading it
        width = max(held.keys.shape[-1] * held.keys.dtype.itemsize * chosen.slots[..., 0].numel(), 1)
        size = max(BLOCK_BYTES // width, LEAST_BLOCK)
    blocks = chosen.slots.split(size, 3)
    scaled = query.float() * held.scaling
    of_blocks = (_gathered(held.keys, block) for block in blocks)
    keys = of_blocks if chosen.keys is None else chosen.keys.split(blocks[0].shape[3], 3)
    parts = [_product(scaled, part.transpose(-1, -2)) for part in keys]
    logits = torch.cat(parts, -1) if parts[1:] else parts[0]
    if held.softcap is not None:
        logits = held.softcap * torch.tanh(logits / held.softcap)
    logits = logits if bias is None else logits + bias
    every = logits if chosen.estimate is None else torch.cat([logits, chosen.estimate.logits], -1)
    mass = softmax_beside(every, None if sinks is None else sinks)
    slot_mass = mass[..., : logits.shape[-1]]
    masses = slot_mass.split(blocks[0].shape[3], 3)
    mixed = [_product(part, _gathered(held.values, block)) for part, block in zip(masses, blocks, strict=True)]
    output = reduce(torch.add, mixed)
    if chosen.estimate is not None:
        output = output + mass[..., logits.shape[-1] :] @ chosen.estimate.values.float()
    return output, slot_mass


def _gathered(states: States, slots: Tensor) -> Tensor:
    """(B, H, U, k, d)."""
    return states_at(states, slots.flatten(2)).unflatten(2, slots.shape[2:])


def _product(rows: Tensor, states: Tensor) -> Tensor:
    """(B, H, G, n) float32 of `rows` (B, H, G, m) with `states` (B, H, 1 or G, m, n)."""
    if states.shape[2] == 1:
        return rows @ states[:, :, 0].float()
    return (rows[:, :, :, None] @ states.float())[:, :, :, 0]
