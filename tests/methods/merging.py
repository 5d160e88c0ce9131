"""A hand-driven layer for any method object, with a rotary embedding, and a note of every decision it made."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.budget import Budget
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.rotary import Rotary
from kvlab.core.contract.view import Slots, View
from kvlab.core.methods import Method
from tests.cache.layers import DIM, HandLayer, draw

ROTARY = Rotary(10000.0 ** (-torch.arange(0, DIM, 2) / DIM))


@dataclass
class Notes:
    """Implements the cache's `Observer`: keeps (view, plan, before, after) of every decision."""

    decisions: list[tuple[View, Plan, Slots, Slots]] = field(default_factory=list)

    def attended(self, *_: object) -> None:
        """Nothing to note."""

    def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
        """Note it; both are copied because decoding changes the table in place."""
        self.decisions.append((view, plan, before.map(torch.clone), after.map(torch.clone)))


class Layer(HandLayer):
    """One layer of a finished method."""

    def __init__(self, method: Method, budget: float | int, rotary: Rotary | None = None, every: int = 1) -> None:
        self.notes = Notes()
        settings = LayerSettings(method.pipeline(), Budget(budget), num_layers=1, compress_every=every)
        settings.observer, settings.rotary = self.notes, rotary
        self.layer = CompressedLayer(0, settings)

    @property
    def slots(self) -> Slots:
        """The table as it is."""
        assert self.layer.slots is not None
        return self.layer.slots

    def table(self, head: int = 0, row: int = 0) -> dict[int, dict[str, Tensor]]:
        """The valid slots of one head by position: key, value, votes, log_mass and the method's own state."""
        slots, found = self.slots, {}
        for index in slots.valid[row, head].nonzero()[:, 0].tolist():
            at = {name: tensor[row, head, index] for name, tensor in slots.metadata().items()}
            at |= {"key": slots.keys[row, head, index].clone(), "value": slots.values[row, head, index].clone()}
            found[int(slots.position[row, head, index])] = at
        return found

    def check_votes(self, tokens: int) -> None:
        """Every token seen is in a slot or was dropped."""
        assert self.layer.evicted_votes is not None
        votes = self.slots.votes.masked_fill(~self.slots.valid, 0).sum(-1).float()
        torch.testing.assert_close(votes + self.layer.evicted_votes, torch.full_like(votes, tokens))


def prompt(seed: int, tokens: int, heads: int = 2, group: int = 1, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a prompt."""
    return (
        draw(seed, batch, heads * group, tokens, DIM),
        draw(seed + 1, batch, heads, tokens, DIM),
        draw(seed + 2, batch, heads, tokens, DIM),
    )


def column_mass(query: Tensor, key: Tensor) -> Tensor:
    """(H, S): attention each token got from all queries, mean over the group; batch of one, written as the formula."""
    heads, group = key.shape[1], query.shape[1] // key.shape[1]
    logits = query @ key.repeat_interleave(group, 1).transpose(-1, -2) * DIM**-0.5
    rows, slots = logits.shape[-2:]
    logits = logits.masked_fill(torch.ones(rows, slots).triu(slots - rows + 1).bool(), -torch.inf)
    return torch.softmax(logits, -1)[0].unflatten(0, (heads, group)).mean(1).sum(1)
