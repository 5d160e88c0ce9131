"""LESS: absorb victims into a low-rank state of fixed size per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.core.contract.parts import Capabilities, Selector
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import View
from kvlab.core.errors import UserError
from kvlab.core.methods.learned.feature_maps import FeatureMaps, random_feature_maps
from kvlab.core.methods.settlers.edges import gather

UNTRAINED = "untrained"

# Per-head state.
NUMERATOR = "low_rank_numerator"  # (B, H, R, d) float32: sum of psi(k) v over absorbed tokens
NORMALIZER = "low_rank_normalizer"  # (B, H, R) float32: sum of psi(k)
HEAD = "low_rank_head"  # (B, H): index of the head in the layer, which selects its maps


@dataclass(frozen=True)
class Absorb:
    """Evict slots and add their content to two sums, which queries read through phi.

    `fitted`: maps of every compressed layer, set by the cache, which knows the model.
    """

    weights: str = UNTRAINED
    rank: int = 8
    state: Mapping[str, float] = field(default_factory=dict)
    fitted: tuple[FeatureMaps, ...] | None = field(default=None, repr=False, compare=False)
    _placed: dict[int, FeatureMaps] = field(default_factory=dict, repr=False, compare=False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(fills_budget=True, by_selector=True, head_bytes=self.head_bytes)

    def settle(self, view: View, select: Selector) -> Plan:
        """Move everything over budget into the state; raises UserError without fitted maps."""
        slots, noted = view.slots, view.head_state
        victims = select.victims(view, view.excess(), view.most_excess)
        head = noted[HEAD] if HEAD in noted else _every_head(slots.keys)
        self.place(view.layer_idx, slots.keys.shape[1], view.seen.query)
        features = self.maps(view.layer_idx, head).of_keys(gather(slots.keys, victims.index))
        features = features if victims.certain else features * victims.active[..., None]
        numerator = features.transpose(-1, -2) @ gather(slots.values, victims.index).float()
        normalizer = features.sum(-2)
        if HEAD in noted:
            numerator, normalizer = noted[NUMERATOR] + numerator, noted[NORMALIZER] + normalizer
        state = {NUMERATOR: numerator, NORMALIZER: normalizer, HEAD: head}
        return Plan(keep=victims.keep(slots.valid), head_state=state, lost=victims.votes(slots.votes))

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of a head's two sums and its index."""
        rank = self.fitted[0].rank if self.fitted else self.rank
        return 4 * rank * (values.shape[-1] + 1) + 8

    def maps(self, layer: int, head: Tensor) -> FeatureMaps:
        """Feature maps of a layer for its KV heads `head` (B, W); they must have been placed before."""
        whole = self._placed[layer]
        return whole if head.shape[1] == whole.heads else whole.of_heads(head)

    def place(self, layer: int, heads: int, query: Tensor) -> None:
        """Move the maps of all `heads` of a layer to the device of its queries (B, Hq, q, d), once.

        A layer's first decision covers all heads; a cache that was kept and restored reads its state before one.
        """
        if layer in self._placed:
            return
        if self.fitted is not None:
            maps = self.fitted[layer]
        elif self.weights == UNTRAINED:
            maps = random_feature_maps(layer, heads, query.shape[1] // heads, query.shape[-1], self.rank)
        else:
            raise UserError("LESS needs feature maps fitted to a model: create its cache with make_cache.")
        self._placed[layer] = maps.map(lambda tensor: tensor.to(query.device))


def _every_head(keys: Tensor) -> Tensor:
    return torch.arange(keys.shape[1], device=keys.device).repeat(keys.shape[0], 1)
