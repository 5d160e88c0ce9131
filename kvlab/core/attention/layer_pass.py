"""One layer's attention in one pass: its inputs, and the output computed from them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from kvlab.core.attention.alibi import Alibi
from kvlab.core.attention.kernels import one_query_kernel
from kvlab.core.attention.layer_handoff import PassResults
from kvlab.core.attention.low_rank_state import LowRankState, StateShare
from kvlab.core.attention.read_attention import SlotsRead
from kvlab.core.attention.slot_attention import ROW_BLOCK, probabilities, slot_attention, slot_logits
from kvlab.core.attention.tiles import Tiles
from kvlab.core.contract.rotary import Rotary
from kvlab.core.stores.quantized_states import PackedStates, States, mix_states

Result = TypeVar("Result")
# Names of statistics of a pass among its results.
SUMS = "expected_sums"
LARGEST = "column_max"
SQUARES = "column_squares"


@dataclass
class LayerPass:
    """q queries over S slots; the last q slots are new."""

    query: Tensor  # (B, Hq, q, d)
    key: States  # (B, H, S, d)
    bias: Tensor | None  # (B, H, 1 or G, S) float32, -inf where a slot is invalid
    row_valid: Tensor | None  # (B, q) bool: false for padding; None if all rows are real
    scaling: float
    softcap: float | None = None
    module: nn.Module | None = field(default=None, repr=False)
    hidden_states: Tensor | None = field(default=None, repr=False)
    rotary: Rotary | None = field(default=None, repr=False)
    generator: torch.Generator | None = field(default=None, repr=False)
    low_rank: LowRankState | None = field(default=None, repr=False)  # the method's state besides the slots
    alibi: Alibi | None = field(default=None, repr=False)
    sinks: Tensor | None = field(default=None, repr=False)  # (B, H, G) logits of learned sinks
    hides: bool = True  # whether `bias` contains -inf
    # For heads in separate tables: (layer index (B, H) of each KV head, number of heads in the layer).
    members: Callable[[], tuple[Tensor, int]] | None = field(default=None, repr=False)
    # see `kvlab.core.cache.layers.compressed_layer`
    recalled: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    _last_logits: Tensor | None = field(default=None, repr=False)  # (B, H, G, 1, S), without log mass
    _last_mass: Tensor | None = field(default=None, repr=False)
    # what a single query read, if sparse attention chose; None: everything
    read: SlotsRead | None = field(default=None, init=False, repr=False)
    _normalizers: Tensor | None = field(default=None, init=False, repr=False)  # (B, H, G, q), without learned sinks
    # shared with other caches that see the same pass over the same slots; a changed copy of the pass has none
    results: PassResults | None = field(default=None, init=False, repr=False)

    def _once(self, name: Hashable, compute: Callable[[], Result], given: Tensor | None = None) -> Result:
        """A result that depends on `name` and the tensor `given` only, computed once for all caches."""
        return compute() if self.results is None else self.results.get(name, compute, given)

    def attend(self, value: States, every_step: bool = False) -> Tensor:
        """Output (B, Hq, q, d) over slots, and the low-rank state if there is one.

        Keeps the log-sum-exps of the logits if the kernel returns them, and of a single query its attention and logits
        if they are needed at `every_step` or cost nothing.
        """
        if self.has_state:
            blocks = []
            for first in range(0, self.num_new, ROW_BLOCK):
                share = self.share(first, min(first + ROW_BLOCK, self.num_new))
                blocks.append(share.output(value))
            if self.num_new == 1:
                self._last_mass = share.slots[:, :, :, 0].mean(2)
            return torch.cat(blocks, 2).to(self.query.dtype)
        # Kernels support no softcap, no ALiBi and no learned sinks; the fused one has one bias per KV head.
        is_plain = self.softcap is None and self.alibi is None and self.sinks is None
        if self.num_new > 1 or (is_plain and not every_step):
            output, self._normalizers = self._once("attend", lambda: self._attend(value))
            return output
        one_bias = self.bias is None or self.bias.shape[2] == 1
        kernel = one_query_kernel(self.query.device) if is_plain and one_bias else None
        if kernel is not None and isinstance(self.key, Tensor) and isinstance(value, Tensor):
            packed = self.query[:, :, 0].unflatten(1, (self.key.shape[1], -1))
            bias = None if self.bias is None else self.bias[:, :, 0]
            output, mass, logits = kernel(packed, self.key, value, bias, self.scaling)
            self._last_logits = logits[:, :, :, None]
            self._last_mass = mass.mean(2)
            return output.flatten(1, 2)[:, :, None]
        self._last_logits = logits = self._logits(0, 1)  # (B, H, G, 1, S)
        if self.sinks is not None or (self.bias is not None and self.hides):
            mass = probabilities(logits, self.bias, self.sinks)
        else:  # no slot is hidden, so no row can be empty
            mass = torch.softmax(logits if self.bias is None else logits + self.bias[:, :, :, None], -1)
        mass = mass[:, :, :, 0]  # (B, H, G, S)
        self._last_mass = mass.mean(2)
        output = mix_states(mass.to(value.dtype), value)
        return output.flatten(1, 2)[:, :, None].to(self.query.dtype)

    def _attend(self, value: States) -> tuple[Tensor, Tensor | None]:
        if isinstance(self.key, PackedStates) or isinstance(value, PackedStates):
            return self._tiles().attention(value)
        results = self.results
        rules = self.bias, self.row_valid, self.softcap, self.alibi, self.sinks
        is_plain = self.query.dtype == torch.float32 and all(rule is None for rule in rules)
        if results is not None and results.on_the_way and is_plain and self.query.device.type == "cpu":
            output, statistics = self._tiles().attention_with_statistics(
                value, results.row_weights, results.largest, results.squares, results.now
            )
            names = SUMS, (LARGEST, 0, results.largest), (SQUARES, 0, results.squares)
            for name, (statistic, seconds) in zip(names, statistics, strict=True):
                if statistic is not None:
                    results.add(name, statistic, seconds)
                    results.aside += seconds
            return output, None
        given = self.query, self.key, value, self.bias
        output, normalizers = slot_attention(
            *given, scaling=self.scaling, softcap=self.softcap, alibi=self.alibi, sinks=self.sinks
        )
        return output, None if normalizers is None else normalizers.unflatten(1, (self.key.shape[1], -1))

    @property
    def has_state(self) -> bool:
        """Whether queries also attend to a low-rank state."""
        if self.low_rank is None:
            return False
        state = self.low_rank.state
        noted = self.low_rank.noted
        if hasattr(state, "begun"):
            return state.begun in noted
        return not state.is_empty(noted)  # type: ignore[attr-defined]  # of plug-ins made before `begun`

    def share(self, first: int, last: int) -> StateShare:
        """Attention split between slots and state for rows `first` to `last`."""
        assert self.low_rank is not None
        return self.low_rank.share(self.query[:, :, first:last], self._logits(first, last), self.bias)

    @property
    def num_new(self) -> int:
        """Number of queries in this pass."""
        return self.query.shape[2]

    def _tiles(self) -> Tiles:
        return Tiles(self.query, self.key, self.bias, self.scaling, self.softcap, self.alibi, self.sinks)

    def _logits(self, first: int, last: int) -> Tensor:
        if isinstance(self.key, PackedStates):
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
