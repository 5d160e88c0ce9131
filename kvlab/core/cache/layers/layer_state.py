"""State of a compressed layer, shared by the modules that read and change it.

Properties cover all heads, whichever table they are in.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from kvlab.core.attention.layer_handoff import PassResults
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.buckets.bucket import Bucket, HeadBudgets
from kvlab.core.cache.rotary import RotaryOfPasses
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.cache.table.head_index import HeadIndex
from kvlab.core.cache.table.packed_table import PackedTable
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract import References, Rotary, Slots, optional
from kvlab.core.errors import UserError


class LayerState:
    """State of a layer: buckets of slot tables, lengths, and the budget."""

    # set when the first tokens arrive
    head_index: HeadIndex
    tokens_seen: Tensor  # (B,)
    device: torch.device
    generator: torch.Generator

    def __init__(self, layer_idx: int, settings: LayerSettings, compressed_index: int | None = None) -> None:
        self.layer_idx = layer_idx
        # Index among the compressed layers, which share the budget.
        self.compressed_index = layer_idx if compressed_index is None else compressed_index
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        self.buckets: list[Bucket] = []
        self.head_budgets: HeadBudgets | None = None  # of the whole layer
        self.is_initialized = False
        self.cumulative_length = 0  # tokens seen, padding included: transformers' logical length
        self.peak_bytes = 0  # most bytes of this layer's tables at once in the last step, of one text
        self.prompt_end = 0  # `cumulative_length` at the end of the prompt
        self.lengths: list[int] = []  # real tokens of each row, on the host
        self.announced: list[int] = []  # real tokens of each row of a prompt processed in blocks
        self.bytes_read: Tensor | None = None  # (B,) in all decode steps since the prompt, under sparse attention
        self.steps_read = 0
        self.waiting = 0  # tokens appended since the last decision
        self.prompt_compressed = False  # the decision about the prompt was made
        self.references: References | None = None  # queries of a second pass, until the decision
        self.checkpoint: Checkpoint | None = None  # state that a second pass rolls back to
        # Frequencies of the keys, pass by pass: none in a layer without rotation of a model that rotates.
        settings = self.settings
        self.rotary = RotaryOfPasses(settings.rotary, settings.changing_rotary)
        if settings.rotary is not None and self.layer_idx in settings.unrotated:
            self.rotary = RotaryOfPasses(Rotary(torch.zeros_like(settings.rotary.inverse_frequencies)), None)

    @property
    def tables(self) -> list[SlotTable]:
        """Slot tables of this layer; several if heads or rows differ in length."""
        return [bucket.table for bucket in self.buckets]

    @property
    def slots(self) -> Slots | None:
        """All slots (B, H, S, ...), free ones included; None before the first token.

        If heads are in several tables this is a copy, padded with invalid slots.
        """
        return self.head_index.join_padded([table.whole() for table in self.tables]) if self.buckets else None

    @property
    def budget(self) -> Tensor | None:
        """Slots (B, H) each head may keep; None before the first attention."""
        return None if self.head_budgets is None else self.head_budgets.slots

    @property
    def evicted_votes(self) -> Tensor:
        """Votes (B, H) lost to eviction."""
        return self.head_index.join([bucket.evicted_votes for bucket in self.buckets])

    @property
    def guard_activations(self) -> Tensor:
        """Counts (B, H) of numerical guards that replaced the method's rule."""
        return self.head_index.join([bucket.guard_activations for bucket in self.buckets])

    def per_head(self, read: Callable[[Slots], Tensor]) -> Tensor:
        """Apply `read`, which maps slots (N, W, S, ...) to (N, W), to each table; returns (B, H)."""
        return self.head_index.join([read(table.columns.with_log_mass(table.slots)) for table in self.tables])

    def saved_bytes(self) -> Tensor:
        """Bytes (B, H) saved by quantization compared to `slot_bytes` per valid slot; 0 without it."""
        saved = [(table.saved_bytes(), table) for table in self.tables]
        return self.head_index.join(
            [table.live() * 0 if bytes_saved is None else bytes_saved for bytes_saved, table in saved]
        )

    def packed_bytes(self) -> tuple[int | None, int | None]:
        """Bytes of codes and of their scales; None if slots are not quantized."""
        parts = [table.part_bytes() for table in self.tables if isinstance(table, PackedTable)]
        return (sum(part["codes"] for part in parts), sum(part["scales"] for part in parts)) if parts else (None, None)

    def table_bytes(self) -> int:
        """Bytes of all tables, metadata and the index of sparse attention included."""
        return sum(table.table_bytes() for table in self.tables) + self.index_bytes()

    def index_bytes(self) -> int:
        """Bytes of the index of sparse attention; 0 without one."""
        return sum(part.nbytes for bucket in self.buckets for part in (bucket.index or {}).values())

    def last_read(self) -> Tensor | None:
        """Bytes (B, H) that the last decode step read from each head; None if it read everything or none was made."""
        parts = [bucket.last_read for bucket in self.buckets if bucket.last_read is not None]
        return self.head_index.join(parts) if len(parts) == len(self.buckets) else None

    def mean_bytes_read(self) -> list[int] | None:
        """Bytes of each row that a decode step reads, mean over the steps; None if every step reads what is held."""
        return None if self.bytes_read is None else (self.bytes_read / self.steps_read).round().long().tolist()

    def seen_again(self, layer_pass: PassView) -> PassView:
        """The prompt's pass over the table's current tensors; heads are equally long before their first decision."""
        table = self.buckets[0].table
        bias = table.bias(table.visible())
        return replace(layer_pass, key=table.states()[0], bias=bias, hides=not table.is_dense)

    def expect_statistics(self, results: PassResults, queries: int) -> bool:
        """Note what this layer's scorer will ask of a pass of so many queries; whether that pays."""
        score = self.settings.pipeline.score
        if not self.settings.in_second_pass:
            row_weights = optional(score, "row_weights")
            if row_weights is None or queries == 1:
                return False
            weights = row_weights(queries, self.device)
            results.expect(weights)
            # Sums over fewer of the last queries cost less than rows of attention do beside the fused kernel.
            return self.device.type == "cpu" and 4 * int(weights.count_nonzero()) > queries
        statistic = optional(score, "second_pass_statistic")
        if self.checkpoint is None or statistic is None:
            return False
        if statistic == "largest":
            results.largest = self.checkpoint.width
        else:
            results.squares = self.checkpoint.width
        return True

    def note_peak(self, most: int) -> None:
        """Note the tables' bytes; `most` of them existed at once since they were last noted."""
        self.settings.held.record(self.compressed_index, self.table_bytes(), most)
        self.peak_bytes = max(self.peak_bytes, most // self.settings.texts)


@dataclass(frozen=True)
class Checkpoint:
    """A layer's state without its slots, which stay where they are."""

    width: int
    dense: bool
    position_dtype: torch.dtype
    tokens_seen: Tensor
    cumulative_length: int
    lengths: list[int]
    waiting: int
    rotary: Any
    states: dict[str, Any]  # recurrent states
    every: list[int]  # stride at which queries of the second pass are kept, per row


NO_WAY_BACK = (
    "This cache cannot be rolled back, since what it has evicted, merged or quantized is not kept (nor where padding "
    "or a window was): copy it before the pass (copy.deepcopy), or keep the text with kvlab.Prefix and fork that."
)


class UnboundedLayer(CacheLayerMixin):
    """A cache layer of unbounded length that cannot be rolled back; `get_seq_length` counts tokens, not slots."""

    is_sliding = False
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: a layer that hands its states on has none of its own."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Sizes of the padding mask, which is indexed by tokens seen, not by slots."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Unbounded."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Raise UserError: evicted or merged slots cannot be restored."""
        if tokens_to_remove != 0:
            raise UserError(NO_WAY_BACK)


class BesideRecurrent:
    """Base class of layers of unbounded length that hold transformers' recurrent state too (`LinearAttentionLayer`)."""

    is_croppable = False

    def reset(self) -> None:
        """Forget the recurrent state and the text."""
        LinearAttentionLayer.reset(self)  # type: ignore[arg-type]  # a base of subclasses
        super().reset()  # type: ignore[misc]  # likewise

    def lazy_initialization(self, *states: Tensor, **named: Any) -> None:
        """Initialize slots (positional states) or the recurrent state (keyword states), as transformers does."""
        if states:
            super().lazy_initialization(*states)  # type: ignore[misc]  # of another base of subclasses
        else:
            LinearAttentionLayer.lazy_initialization(self, **named)  # type: ignore[arg-type]  # likewise
