"""Return slots to sparse attention: what if these had been read at every step?"""

from dataclasses import replace

import torch
from torch import Tensor

from kvlab.core.contract import NEVER, Chosen, Held, Index, SparseAttention, SparseCapabilities
from kvlab.core.methods.sparse_attention.selection import of_sets
from kvlab.core.restore import Restore
from kvlab.core.stores.quantized_states import states_at


def with_slots_read(sparse_attention: SparseAttention | None, returned: Restore) -> SparseAttention | None:
    """The sparse attention with the slots that `returned` gives back to it; None, which reads everything, stays."""
    if sparse_attention is None or returned.kind not in ("tokens", "heads", "read"):
        return sparse_attention
    if returned.heads is None and not returned.tokens:
        return None
    dense = sparse_attention.model_dump(include={"dense_layers", "dense_steps"})
    return ExtraSlotsRead(inner=sparse_attention, returned=returned, **dense)


class ExtraSlotsRead(SparseAttention):
    """Reads what other sparse attention chooses, and the returned slots, exactly, beside it.

    Stand-ins of sparse attention that estimates still count a returned slot, except in heads that read everything.
    """

    name = "read-back"
    title = "With returned slots"
    exact_at = {}

    inner: SparseAttention
    returned: Restore

    @property
    def capabilities(self) -> SparseCapabilities:
        return self.inner.capabilities

    def index(self, held: Held) -> Index:
        return self.inner.index(held)

    def note(self, index: Index, held: Held) -> Index:
        return self.inner.note(index, held)

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        chosen = self.inner.choose(query, held, index)
        # Heads (B, H) of this layer with returned slots.
        number = held.heads
        if number is None:
            number = torch.arange(held.position.shape[1], device=held.position.device).expand(held.position.shape[:2])
        heads = torch.ones_like(number, dtype=torch.bool)
        if self.returned.heads is not None:
            layer_heads = [head for layer, head in self.returned.heads if layer == held.layer]
            if not layer_heads:
                return chosen
            heads = torch.isin(number, torch.tensor(layer_heads, device=number.device))
        wanted = heads[..., None] & held.valid()
        if self.returned.tokens:
            tokens = torch.tensor(self.returned.tokens, dtype=held.position.dtype, device=held.position.device)
            wanted = wanted & torch.isin(held.position, tokens)
        weight = _by_slot(chosen, held.count).masked_fill(wanted[:, :, None], 0.0)
        both = of_sets(weight > NEVER, weight, chosen.index_bytes)
        if chosen.keys is not None:
            assert chosen.log_weight is not None
            has_key = _by_slot(chosen, held.count).gather(3, both.slots) > NEVER
            # Its own keys (B, H, U, k, d); of no meaning where it did not choose a slot.
            rank = torch.arange(chosen.slots.shape[3], device=both.slots.device).expand(chosen.slots.shape)
            rank = rank.masked_fill(chosen.log_weight == NEVER, -1)
            place = rank.new_full((*both.slots.shape[:3], held.count), 0)
            place = place.scatter_reduce_(3, chosen.slots, rank, "amax").gather(3, both.slots)
            stand_ins = chosen.keys.gather(3, place[..., None].expand(*place.shape, chosen.keys.shape[-1]))
            stored = states_at(held.keys, both.slots.flatten(2)).unflatten(2, both.slots.shape[2:]).float()
            keys = torch.where(has_key[..., None], stand_ins, stored)
            both = replace(both, keys=keys)
        if chosen.estimate is None or self.returned.tokens:
            return replace(both, estimate=chosen.estimate)
        logits = chosen.estimate.logits.masked_fill(heads[:, :, None, None], NEVER)
        return replace(both, estimate=chosen.estimate._replace(logits=logits))


def _by_slot(chosen: Chosen, count: int) -> Tensor:
    """Log weights (B, H, U, `count`) of all slots, -inf where one is not read."""
    weight = chosen.log_weight
    if weight is None:
        weight = torch.zeros(chosen.slots.shape, device=chosen.slots.device)
    every = torch.full((*chosen.slots.shape[:3], count), NEVER, device=weight.device)
    return every.scatter_reduce_(3, chosen.slots, weight, "amax")
