"""One pass of one layer: its outputs, and the logits and attention of its rows, always float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from kvlab.attention.alibi import Alibi
from kvlab.attention.kernels import OneQuery, one_query_kernel
from kvlab.attention.low_rank_state import LowRankState, StateShare
from kvlab.attention.slot_attention import ROW_BLOCK, probabilities, slot_attention, slot_logits
from kvlab.attention.tiles import Tiles
from kvlab.methods.core.rotary import Rotary
from kvlab.stores.quantized_states import HeldStates, States, mixed


@dataclass
class Pass:
    """q queries over S slots, the last q of which are new."""

    query: Tensor  # (B, Hq, q, d)
    key: States  # (B, H, S, d)
    bias: Tensor | None  # (B, H, 1 or G, S) float32, -inf where a slot is invalid
    row_valid: Tensor | None  # (B, q) bool: false for padding; None when all rows are real
    scaling: float
    softcap: float | None = None
    module: nn.Module | None = field(default=None, repr=False)
    hidden_states: Tensor | None = field(default=None, repr=False)
    rotary: Rotary | None = field(default=None, repr=False)
    generator: torch.Generator | None = field(default=None, repr=False)
    low_rank: LowRankState | None = field(default=None, repr=False)  # what the method keeps beside the slots
    alibi: Alibi | None = field(default=None, repr=False)
    sinks: Tensor | None = field(default=None, repr=False)  # (B, H, G) logits of learned sinks
    hides: bool = True  # whether `bias` may be -inf
    # Where heads lie in tables of their own: which KV head of the layer (B, H) each is, and of how many.
    members: Callable[[], tuple[Tensor, int]] | None = field(default=None, repr=False)
    recalled: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # `kvlab.cache.layers.recent_queries`
    # (B, H, d): a key that may soon be held against all others; beside a single query its `products` cost hardly more.
    along: Tensor | None = field(default=None, repr=False)
    products: Tensor | None = field(default=None, init=False, repr=False)  # (B, H, S): `along` and keys, scaled
    _last_logits: Tensor | None = field(default=None, repr=False)  # (B, H, G, 1, S), log mass not added
    _last_mass: Tensor | None = field(default=None, repr=False)
    _normalizers: Tensor | None = field(default=None, init=False, repr=False)  # (B, H, G, q), learned sinks left out

    def attend(self, value: States) -> Tensor:
        """The output (B, Hq, q, d); the log-sum-exps of the logits are kept, if the kernel gives them."""
        if isinstance(self.key, HeldStates) or isinstance(value, HeldStates):
            output, self._normalizers = self._tiles().attention(value)
            return output
        given = self.query, self.key, value, self.bias
        output, normalizers = slot_attention(
            *given, scaling=self.scaling, softcap=self.softcap, alibi=self.alibi, sinks=self.sinks
        )
        self._normalizers = None if normalizers is None else normalizers.unflatten(1, (self.key.shape[1], -1))
        return output

    def attend_one(self, value: States) -> Tensor:
        """The output (B, Hq, 1, d) of a single query; its logits and mass are kept: one pass for both."""
        kernel = self._kernel()
        if kernel is not None and isinstance(self.key, Tensor) and isinstance(value, Tensor):
            packed = self.query[:, :, 0].unflatten(1, (self.key.shape[1], -1))
            bias = None if self.bias is None else self.bias[:, :, 0]
            output, mass, logits = kernel(packed, self.key, value, bias, self.scaling)
            self._last_logits, self._last_mass = logits[:, :, :, None], mass.mean(2)
            return output.flatten(1, 2)[:, :, None]
        group = self.query.shape[1] // self.key.shape[1]
        # (B, H, G or G + 1, 1, S)
        logits = self._logits(0, 1) if self.along is None else self._logits_along(self.along)
        self._last_logits = logits.narrow(2, 0, group)
        mass = self._probabilities_of_one(logits, group)[:, :, :, 0]  # (B, H, G, S)
        self._last_mass = mass.mean(2)
        output = mixed(mass.to(value.dtype), value)
        return output.flatten(1, 2)[:, :, None].to(self.query.dtype)

    def _logits_along(self, along: Tensor) -> Tensor:
        """The logits of a single query, behind them the products of the key that goes along: keys are read once."""
        if not self.is_plain or isinstance(self.key, HeldStates):
            return self._logits(0, 1)
        batch, heads, head_dim = along.shape
        query = self.query.reshape(batch * heads, -1, head_dim)
        together = torch.cat([query, along.view(-1, 1, head_dim)], 1).view(batch, -1, 1, head_dim)
        logits = slot_logits(together, self.key, first=0, rows=1, scaling=self.scaling)
        self.products = logits.select(2, -1).select(2, 0)
        return logits

    def _probabilities_of_one(self, logits: Tensor, group: int) -> Tensor:
        """Of a single query, from the first `group` logits; without hidden slots no row may look at nothing."""
        if self.sinks is not None or (self.bias is not None and self.hides):
            return probabilities(logits.narrow(2, 0, group), self.bias, self.sinks)
        if self.bias is not None:
            return torch.softmax(logits.narrow(2, 0, group) + self.bias[:, :, :, None], -1)
        return torch.softmax(logits, -1).narrow(2, 0, group)  # softmax of a part would copy it first

    def _kernel(self) -> OneQuery | None:
        """The fused kernel where there is one, which knows logits of one bias a KV head and no more."""
        one_bias = self.bias is None or self.bias.shape[2] == 1
        return one_query_kernel(self.query.device) if self.is_plain and one_bias else None

    @property
    def is_plain(self) -> bool:
        """Whether kernels know this attention: logits neither capped nor biased by query head, no learned sinks."""
        return self.softcap is None and self.alibi is None and self.sinks is None

    @property
    def has_state(self) -> bool:
        """Whether queries also attend to a state beside the slots."""
        return self.low_rank is not None and not self.low_rank.is_empty

    def attend_with_state(self, value: States) -> Tensor:
        """The output (B, Hq, q, d) of the slots and the state beside them; a single query's mass is kept."""
        blocks = []
        for first in range(0, self.num_new, ROW_BLOCK):
            share = self.share(first, min(first + ROW_BLOCK, self.num_new))
            blocks.append(share.output(value))
        if self.num_new == 1:
            self._last_mass = share.slots[:, :, :, 0].mean(2)
        return torch.cat(blocks, 2).to(self.query.dtype)

    def share(self, first: int, last: int) -> StateShare:
        """How rows `first` to `last` divide their attention between slots and state."""
        assert self.low_rank is not None
        return self.low_rank.share(self.query[:, :, first:last], self._logits(first, last), self.bias)

    @property
    def num_new(self) -> int:
        """Queries of this pass."""
        return self.query.shape[2]

    def _tiles(self) -> Tiles:
        return Tiles(self.query, self.key, self.bias, self.scaling, self.softcap, self.alibi, self.sinks)

    def _mass(self, first: int, last: int) -> Tensor:
        if self.has_state:
            return self.share(first, last).slots
        return probabilities(self._logits(first, last), self.bias, self.sinks)

    def _logits(self, first: int, last: int) -> Tensor:
        if isinstance(self.key, HeldStates):
            tiles = replace(self._tiles(), bias=None)
            return torch.cat([tiles.logits(slice(first, last), columns) for columns in self.key.blocks()], -1)
        return slot_logits(
            self.query[:, :, first:last],
            self.key,
            first=first,
            rows=self.num_new,
            scaling=self.scaling,
            softcap=self.softcap,
            alibi=self.alibi,
        )
