"""One compressed layer: it appends, attends, lets its method decide, and applies the decision, in that order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from kvlab.attention.handoff import offer
from kvlab.attention.hidden import take_hidden_states
from kvlab.attention.low_rank import low_rank_state
from kvlab.attention.seen import PassSeen
from kvlab.attention.slot_attention import slot_attention
from kvlab.cache import executor
from kvlab.cache.find_rotary import RotaryOfPasses
from kvlab.cache.passage import Rows
from kvlab.cache.quota import Quota
from kvlab.cache.settings import LayerSettings
from kvlab.cache.table import BLOCK, SlotTable, new_slots
from kvlab.methods.plan import Plan
from kvlab.methods.view import Slots, View


class CompressedLayer(CacheLayerMixin):
    """A layer whose physical slots are fewer than the tokens it has seen.

    Decoding writes each new token into a free slot in place, so a method with a fixed budget never moves or
    reallocates its table. Tables that grow do so by blocks of 64 slots.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, layer_idx: int, settings: LayerSettings, rank: int | None = None) -> None:
        self.layer_idx = layer_idx
        self.rank = layer_idx if rank is None else rank  # among the compressed layers, which share the budget
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.table: SlotTable | None = None
        self.quota: Quota | None = None
        self.is_initialized = False
        self.cumulative_length = 0  # tokens seen, padding counted: transformers' logical length
        self.peak_bytes = 0
        self._lengths: list[int] = []  # real tokens of each row, on the host
        self._waiting = 0  # tokens appended since the last decision
        self._prompt_settled = False  # the decision about the prompt was made
        self._started = False  # every row has been over budget before
        self._rotary = RotaryOfPasses(self.settings.rotary, self.settings.changing_rotary)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Adopt the first tokens' type and device."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(self.settings.seed * 1_000_003 + self.layer_idx)
        self.tokens_seen = torch.zeros(key_states.shape[0], dtype=torch.int64, device=self.device)
        self.dropped = torch.zeros(key_states.shape[:2], device=self.device)  # (B, H) votes lost to eviction
        self.guard_activations = torch.zeros_like(self.dropped)
        self._lengths = [0] * key_states.shape[0]
        self.is_initialized = True

    # transformers' Cache interface

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append (B, H, q, d) states; return what this pass attends to: all slots, the new ones among or after them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = key_states.shape[2]
        position = self.tokens_seen[:, None] + torch.arange(rows, device=self.device)
        new = new_slots(key_states, value_states, position, self.settings.pipeline.new_extra)
        if self.table is None:
            self.table = SlotTable(new)
            if self.settings.passage is not None and self.rank == 0:
                self.settings.passage.begin()
        elif rows == 1:
            self.table.append_one(new)
        else:
            self.table.append_many(new)
        self.tokens_seen = self.tokens_seen + rows
        self.cumulative_length += rows
        self._lengths = [length + rows for length in self._lengths]
        self._waiting += rows
        visible = self.table.visible()
        offer(self, visible.keys)
        return visible.keys, visible.values

    def get_seq_length(self) -> int:
        """Logical length: tokens seen, padding counted."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Logical geometry: the padding mask kvlab asks for is indexed by tokens seen, not by slots."""
        return self.cumulative_length + query_length, 0

    def get_max_length(self) -> int:
        """Unbounded."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Permute batch rows, metadata included."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep or permute batch rows, metadata included."""
        self._map_rows(lambda tensor: tensor[indices.to(tensor.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row, metadata included."""
        self._map_rows(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing can be taken back once slots were dropped or merged."""
        if tokens_to_remove != 0:
            raise NotImplementedError("A compressed cache cannot be rolled back; assisted decoding is not supported.")

    @property
    def slots(self) -> Slots | None:
        """The whole slot table, free room included; None before the first token."""
        return None if self.table is None else self.table.slots

    @property
    def budget(self) -> Tensor | None:
        """(B, H) slots each head may keep; None before the first attention."""
        return None if self.quota is None else self.quota.slots

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """The slots' keys, free room included."""
        return None if self.slots is None else self.slots.keys

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """The slots' values, free room included."""
        return None if self.slots is None else self.slots.values

    # attention and decision

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        scaling: float,
        softcap: float | None,
        module: nn.Module | None = None,
    ) -> Tensor:
        """Output (B, Hq, q, d) over all slots; then the method scores and, when due, this layer is compressed."""
        assert self.table is not None
        rows, first = query.shape[2], self.quota is None
        row_valid, passage = None, self.settings.passage
        if first and passage is not None and passage.current is not None:
            row_valid = self._mark_narrowed(self.table, passage.current)
        elif padding is not None and (rows > 1 or first):
            row_valid = padding[:, -rows:].to(torch.bool)
            self._mark_padding(row_valid)
        self.peak_bytes = max(self.peak_bytes, self.table.table_bytes())
        if self.quota is None:
            self.quota = Quota(self.settings, self.rank, self._lengths, key.shape[1], self.device)
        hidden = None if module is None else take_hidden_states(module)
        bias, rotary = self.table.bias(), self._rotary.now()
        state = low_rank_state(self.settings.pipeline, self.rank, self.table.head_state)
        seen = PassSeen(query, key, bias, row_valid, scaling, softcap, module, hidden, rotary, self.generator, state)
        if seen.has_state:
            output = seen.attend_with_state(value)
        elif rows == 1 and (self.settings.pipeline.score.every_step or softcap is not None):
            output = seen.attend_one(value)
        else:
            output = slot_attention(query, key, value, bias, scaling=scaling, softcap=softcap)
        if self.settings.observer is not None:
            self.settings.observer.attended(self.layer_idx, self.table.visible(), seen, value, output)
        self._decide(self.table, self.quota, seen, first)
        return output

    def _decide(self, table: SlotTable, quota: Quota, seen: PassSeen, first: bool) -> None:
        pipeline, slots = self.settings.pipeline, table.visible()
        table.store(pipeline.score.update(slots, seen, first))
        if first and (noted := pipeline.allocate.statistic(slots, seen)) is not None:
            self.settings.statistics[self.rank] = noted
        prompt = not self._prompt_settled and not (first and pipeline.deferred)
        one = seen.num_new == 1 and not prompt
        due = prompt or (pipeline.decode and not first and (not one or self._waiting >= self.settings.compress_every))
        phase: Literal["prefill", "decode"] = "prefill" if prompt else "decode"
        if prompt:
            self._prompt_settled = True
            quota.allocate_heads(self.settings, self._view(table, quota, seen, phase, one))
        if due and table.occupied > quota.smallest:
            view = self._view(table, quota, seen, phase, one)
            with self.settings.clock(phase, self.device):
                self._apply(table, quota, view, pipeline.plan(view), moves=not one)
            self._started = quota.was_exceeded(self._lengths)
        elif first:
            self._pass_on(slots.valid, slots)
            table.detach()
        if due:
            self._waiting = 0

    def _view(
        self, table: SlotTable, quota: Quota, seen: PassSeen, phase: Literal["prefill", "decode"], one: bool
    ) -> View:
        excess = self._waiting if one else max(table.occupied - quota.smallest, 0)
        return View(
            slots=table.visible(),
            seen=seen,
            budget=quota.slots,
            tokens_seen=self.tokens_seen,
            phase=phase,
            most_excess=min(excess, table.width),
            largest_budget=quota.largest,
            started=self._started,
            layer_idx=self.rank,
            num_layers=self.settings.num_layers,
            generator=self.generator,
            statistics=self.settings.statistics,
            head_state=table.head_state,
        )

    def _apply(self, table: SlotTable, quota: Quota, view: View, plan: Plan, moves: bool) -> None:
        slots, observer = view.slots, self.settings.observer
        before = None if observer is None else slots.map(torch.clone)
        self.dropped += _votes_lost(slots, plan)
        if plan.guard_activations is not None:
            self.guard_activations += plan.guard_activations
        self._rotary.check(plan)
        if view.phase == "prefill":
            self._pass_on(plan.keep, slots)
        after = executor.apply(slots, plan, view.seen.rotary)
        table.head_state |= plan.head_state or {}
        if observer is not None and before is not None:
            observer.compressed(self.layer_idx, view, plan, before, after)
        table.weighted = table.weighted or plan.edges is not None
        table.adopt(after, quota.largest)
        if moves:
            held = table.table_bytes()
            table.compact(self.settings.compress_every if self.settings.pipeline.decode else BLOCK)
            self.peak_bytes = max(self.peak_bytes, held + table.table_bytes())

    def _pass_on(self, keep: Tensor, slots: Slots) -> None:
        """With prefill saving: the next layer works on the tokens `keep` (B, H, S) only, the same in every head."""
        if self.settings.passage is not None:
            self.settings.passage.leave(keep[:, 0], slots.position[:, 0])

    def _mark_narrowed(self, table: SlotTable, given: Rows) -> Tensor | None:
        """The prompt's tokens that reached this layer; the others count as seen and dropped. Returns real rows."""
        self.tokens_seen, self.cumulative_length = given.tokens, given.length
        self._lengths = given.tokens.tolist()
        self.dropped = self.dropped + (given.tokens - given.valid.sum(-1))[:, None]
        dense = table.is_dense and given.all_valid
        table.mark_padding(given.valid, given.position)
        table.is_dense = dense
        return None if dense else given.valid

    def _mark_padding(self, row_valid: Tensor) -> None:
        """Padding among the newest tokens does not count: not as slots, not as tokens seen."""
        assert self.table is not None
        before = self.tokens_seen - row_valid.shape[1]
        self.table.mark_padding(row_valid, before[:, None] + row_valid.cumsum(-1) - 1)
        self.tokens_seen = before + row_valid.sum(-1)
        self._lengths = self.tokens_seen.tolist()

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.table is None:
            return
        self.table.map_rows(change)
        self.dropped, self.guard_activations = change(self.dropped), change(self.guard_activations)
        self.tokens_seen = change(self.tokens_seen)
        if self.quota is not None:
            self.quota.map_rows(change(self.quota.slots))
        if len(self._lengths) != self.tokens_seen.shape[0]:
            self._lengths = self.tokens_seen.tolist()


def _votes_lost(slots: Slots, plan: Plan) -> Tensor:
    """(B, H) votes of the slots that leave without going into another one."""
    leaving = slots.votes.masked_fill(plan.keep | ~slots.valid, 0.0).sum(-1)
    if plan.edges is None:
        return leaving
    return leaving - slots.votes.gather(2, plan.edges.source).masked_fill(~plan.edges.active, 0.0).sum(-1)
