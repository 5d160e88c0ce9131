"""Return slots to a reading: what if these had been read at every step?"""

from dataclasses import replace

import torch
from torch import Tensor

from kvlab.core.contract import NEVER, Chosen, Held, Index, Reading, ReadingCapabilities
from kvlab.core.methods.readings.selection import of_sets
from kvlab.core.restore import Restore
from kvlab.core.stores.quantized_states import states_at


def reading_back(reading: Reading | None, returned: Restore) -> Reading | None:
    """The reading with the slots that `returned` gives back to it; None, which reads everything, stays."""
    if reading is None or returned.kind not in ("tokens", "heads", "read"):
        return reading
    if returned.heads is None and not returned.tokens:
        return None
    return ReadingBack(inner=reading, returned=returned, **reading.model_dump(include={"dense_layers", "dense_steps"}))


class ReadingBack(Reading):
    """Reads what another reading chooses, and the returned slots, exactly, beside it.

    Stand-ins of a reading that estimates still count a returned slot, except in heads that read everything.
    """

    name = "read-back"
    title = "With returned slots"
    exact_at = {}

    inner: Reading
    returned: Restore

    @property
    def capabilities(self) -> ReadingCapabilities:
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
            # The reading's own keys (B, H, U, k, d); of no meaning where it did not choose a slot.
            rank = torch.arange(chosen.slots.shape[3], device=both.slots.device).expand(chosen.slots.shape)
            rank = rank.masked_fill(chosen.log_weight == NEVER, -1)
            place = rank.new_full((*both.slots.shape[:3], held.count), 0)
            place = place.scatter_reduce_(3, chosen.slots, rank, "amax").gather(3, both.slots)
            from_reading = chosen.keys.gather(3, place[..., None].expand(*place.shape, chosen.keys.shape[-1]))
            stored = states_at(held.keys, both.slots.flatten(2)).unflatten(2, both.slots.shape[2:]).float()
            keys = torch.where(has_key[..., None], from_reading, stored)
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
