"""A compressed cache layer: append, attend, decide, apply the decision."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import itemgetter

import torch
from torch import Tensor
from transformers.utils.import_utils import is_tracing

from kvlab.core.attention.alibi import Alibi, query_positions
from kvlab.core.attention.layer_handoff import AttentionCall, PassResults, offer_layer
from kvlab.core.attention.low_rank_state import LowRankState
from kvlab.core.attention.pass_view import PassView
from kvlab.core.cache.buckets.bucket import Bucket, HeadBudgets, sizes_of
from kvlab.core.cache.buckets.joined_layer import join_passes
from kvlab.core.cache.buckets.regroup import part_rows
from kvlab.core.cache.layers.blockwise import BlockwiseAttention
from kvlab.core.cache.layers.decisions import decide
from kvlab.core.cache.layers.layer_state import NO_WAY_BACK, LayerState, UnboundedLayer
from kvlab.core.cache.layers.second_pass_queries import UNREAD, note_second_pass
from kvlab.core.cache.layers.sparse_attention import attend_read, note_bytes_read, sparse_attention_of_step
from kvlab.core.cache.settings import Observer
from kvlab.core.cache.table.head_index import HeadIndex
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract import Slots, integer_dtype, optional
from kvlab.core.errors import UserError


class CompressedLayer(LayerState, UnboundedLayer):
    """A layer whose physical slots are fewer than the tokens it has seen.

    Heads that keep equally many slots share one table. Otherwise, after the prompt, heads are grouped into a few tables
    of similar length so that evicted slots are freed. Decoding writes each new token into a free slot in place, so a
    method with a fixed budget never moves or reallocates a table.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take dtype and device from the first tokens."""
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(self.settings.seed * 1_000_003 + self.layer_idx)
        rows, heads = key_states.shape[:2]
        self.head_index = HeadIndex(rows, heads, heads, [list(range(rows))], self.device)
        self.tokens_seen = torch.zeros(key_states.shape[0], dtype=torch.int64, device=self.device)
        self.lengths = [0] * key_states.shape[0]
        self.is_initialized = True

    # transformers' Cache interface

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append states (B, H, q, d) and return the slots this pass attends to (not all if heads differ in length).

        The returned tensor identifies this layer to kvlab's attention function, which then calls `attend`.
        """
        settings = self.settings
        unread = settings.second_pass is not None and not (settings.second_pass.done or settings.second_pass.running)
        if unread and self.head_budgets is not None and settings.pending is not None:
            raise UserError(UNREAD)  # tokens follow a prompt whose second pass never ran because a submodule was called
        if settings.unattended is not None:
            raise UserError(
                f"Layer {settings.unattended} stored keys and values in this cache, but the model did not use kvlab's "
                "attention, so the cache would never be compressed: run the model that make_cache was given, loaded "
                "with kvlab.load_model, and do not change its attention implementation."
            )
        if key_states.requires_grad or value_states.requires_grad:
            key_states = key_states.detach()
            value_states = value_states.detach()
        self._leave_inference_mode()
        rows = key_states.shape[2]
        block = self.settings.pipeline.block
        if self.head_budgets is None:
            self.prompt_end = self.cumulative_length + rows
        elif not self.settings.in_second_pass:
            # Begin another step after the prompt's: peaks are those of a step.
            self.peak_bytes = 0
            if self.compressed_index == 0:
                self.settings.held.peak = self.settings.held.total
        self.settings.unattended = self.layer_idx
        if block and rows > block and self.cumulative_length == 0:
            offer_layer(BlockwiseAttention(self, self.layer_idx, block), key_states)
            return key_states, value_states
        return self.append_states(key_states, value_states)

    def append_states(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """`update` for tokens of a pass that has been checked already."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        pipeline = self.settings.pipeline
        rows = key_states.shape[2]
        tokens = max(self.cumulative_length + rows, self.settings.prompt_tokens)
        for table in self.tables:
            if not table.fits_integers(tokens):
                table.set_integers(integer_dtype(tokens))
        keys = self.head_index.by_head(key_states)
        values = self.head_index.by_head(value_states)
        if rows == 1 and self.head_budgets is not None and not self.settings.in_second_pass:
            places = self.head_index.by_row(self.tokens_seen)
            for table, key, value, place in zip(self.tables, keys, values, places, strict=True):
                table.append_one(key, value, place, pipeline.state)
        else:
            position = self.tokens_seen[:, None] + torch.arange(rows, device=self.device)
            parts = zip(keys, values, self.head_index.by_row(position), strict=True)
            arrived = [pipeline.fresh(*part, self.settings.group, tokens) for part in parts]
            if self.buckets:
                for table, new in zip(self.tables, arrived, strict=True):
                    table.append_many(new)
            else:
                self.buckets = [Bucket(SlotTable(arrived[0], pipeline.columns))]
                self.buckets[0].table.make_room(self.settings.prompt_tokens - rows)
        self.tokens_seen += rows
        self.cumulative_length += rows
        self.lengths = [length + rows for length in self.lengths]
        self.waiting += rows
        offered = self.buckets[0].table.native_states()
        offer_layer(self, offered[0])
        return offered

    def get_seq_length(self) -> int:
        """Tokens seen, padding included."""
        return self.cumulative_length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map_rows(lambda tensor: tensor[indices.to(tensor.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map_rows(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]  # an attribute in transformers; here it depends on the text
        """Whether every token stays in a slot of its own, in the order of the text, so that the last ones can go."""
        settings = self.settings
        keeps_all = not settings.is_lossy and settings.sparse_attention is None
        return keeps_all and len(self.buckets) <= 1 and all(table.is_dense for table in self.tables)

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens, as many as the negative number says; raises UserError if that is impossible."""
        if tokens_to_remove == 0 or not self.is_initialized:
            return
        left = self.cumulative_length + tokens_to_remove
        if tokens_to_remove > 0 or left < 0:
            raise UserError(
                f"Cannot crop by {tokens_to_remove:,}: pass minus the number of last tokens that are to go, such as "
                f"cache.crop(-1), at most the {self.cumulative_length:,} that this cache has read."
            )
        if not self.is_croppable:
            raise UserError(NO_WAY_BACK)
        if left == 0:
            self.reset()
            return
        self._leave_inference_mode()
        self.buckets[0].table.forget(left, True)
        self.tokens_seen = self.tokens_seen + tokens_to_remove
        self.cumulative_length = left
        self.lengths = [length + tokens_to_remove for length in self.lengths]

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]  # an attribute in transformers; here read from the table
        """Keys of all slots, free ones included."""
        return None if self.slots is None else self.slots.keys

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]  # likewise
        """Values of all slots, free ones included."""
        return None if self.slots is None else self.slots.values

    # attention and decision

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Output (B, Hq, q, d) over all slots; then the method scores and, when due, compresses this layer."""
        rows = query.shape[2]
        # A prompt processed in blocks came in one pass of the model.
        incomplete = not self.announced and self.cumulative_length < self.settings.prompt_tokens
        self.settings.unattended = None
        if self.head_budgets is None and call.module is not None:
            self.settings.check_model(call.module, query.shape[1] // key.shape[1])
        completes_prompt = self.head_budgets is None and not incomplete
        row_valid = None
        idle: Sequence[bool] = ()
        if call.padding is not None and (rows > 1 or self.head_budgets is None or self.settings.in_second_pass):
            row_valid = call.padding[:, : self.cumulative_length][:, -rows:].to(torch.bool)
            idle = self._mark_padding(row_valid)
            is_sparse = self.settings.sparse_attention is not None and not self.settings.in_second_pass
            if self.head_budgets is not None and is_sparse:
                counts = row_valid.sum(-1).tolist()
                if min(counts) < 2:
                    raise UserError(
                        f"Row {counts.index(min(counts))} of this pass has {min(counts)} of its {rows} tokens, the "
                        "rest is padding: with sparse attention a pass of several tokens reads everything and builds "
                        "the index anew, which this row alone would not do. Give it at least two tokens, or take it "
                        "out of the batch (cache.batch_select_indices)."
                    )
        elif call.padding is not None:
            padding = call.padding
            # A row without a token; not looked at on a GPU, which would have to wait.
            if self.compressed_index == 0 and padding.device.type == "cpu" and not is_tracing(padding):
                has_token = padding[:, self.cumulative_length - 1].bool()
                if not has_token.all():
                    row = int(has_token.int().argmin())
                    raise UserError(
                        f"Row {row} of this pass of one token is padding, but a decode step adds a token to every row: "
                        "take out rows that have ended (cache.batch_select_indices), or pass two columns, padded in "
                        "front."
                    )
        self.note_peak(self.table_bytes() + max(table.left_bytes for table in self.tables))
        if completes_prompt:
            # The layer's budget follows from the length of the prompt.
            batch = self.head_index.batch
            heads = self.head_index.heads
            sizes = sizes_of(self.settings, self.buckets[0].table, batch * heads * self.settings.num_layers, batch)
            lengths = [self.settings.text_tokens or length for length in self.announced or self.lengths]
            self.head_budgets = self.buckets[0].head_budgets = HeadBudgets.of_layer(
                self.settings, self.compressed_index, lengths, heads, self.device, sizes
            )
        if call.hidden_states is None and call.module is not None and self.settings.pipeline.score.needs_hidden_states:
            raise UserError(
                "This method needs the model's hidden states, which only the model that make_cache was given provides: "
                "pass the prompt to that model, not to an earlier copy of it."
            )
        real: Sequence[Tensor | None] = [None] * len(self.tables)
        if row_valid is not None:
            real = self.head_index.by_row(row_valid)
        visible = [table.visible() for table in self.tables]
        if call.results is None and rows > 1 and query.device.type == "cpu":
            results = PassResults()
            results.on_the_way = self.expect_statistics(results, rows)
            call = call._replace(results=results if results.on_the_way else None)
        passes = self._passes(query, call, row_valid, real, visible)
        every_step = self.settings.pipeline.score.every_step
        sparse_attention = None if completes_prompt or incomplete else sparse_attention_of_step(self, rows)
        pairs = enumerate(zip(self.buckets, passes, strict=True))
        if sparse_attention is not None:
            output = self.head_index.join([attend_read(self, sparse_attention, place, *pair) for place, pair in pairs])
        else:
            output = self.head_index.join(
                [part.attend(bucket.table.states()[1], every_step) for _, (bucket, part) in pairs]
            )
        if self.settings.sparse_attention is not None:
            whole_reads = 1 if rows == 1 and not (completes_prompt or incomplete) else 2
            note_bytes_read(self, 0 if sparse_attention is not None else whole_reads)
        if self.settings.in_second_pass:
            note_second_pass(self, passes[0])
        elif incomplete:
            if self.settings.part_observer is not None:
                self.settings.part_observer.attended_part(self.layer_idx, passes[0])
            accumulate = optional(self.settings.pipeline.score, "accumulate")
            if accumulate is not None:
                self.buckets[0].table.store(accumulate(visible[0], passes[0]))
        else:
            decide(self, passes, visible, self._report(passes, visible, query, output), completes_prompt, idle)
        return output

    def _passes(
        self,
        query: Tensor,
        call: AttentionCall,
        row_valid: Tensor | None,
        real: Sequence[Tensor | None],
        visible: Sequence[Slots],
    ) -> list[PassView]:
        """What each table's heads do in this pass; `real` (N, q) marks real queries, and `visible` are its slots."""
        batch = self.head_index.batch
        count = len(self.tables)
        slopes: Sequence[Tensor | None] = [None] * count
        sinks: Sequence[Tensor | None] = [None] * count
        positions: Sequence[Tensor] = ()
        if call.slopes is not None:
            slopes = self.head_index.by_head(call.slopes.expand(batch, -1))
            query_position = query_positions(self.tokens_seen, query.shape[2], row_valid).expand(batch, -1)
            positions = self.head_index.by_row(query_position)
        if call.sinks is not None:
            sinks = self.head_index.by_head(call.sinks.expand(batch, -1))
        common = call.scaling, call.softcap, call.module, call.hidden_states, self.rotary.now(), self.generator
        low_rank = self.settings.pipeline.state_beside_slots
        passes = []
        for number, (table, part) in enumerate(zip(self.tables, self.head_index.by_head(query), strict=True)):
            heads = table.slots.keys.shape[1]
            alibi = sink = None
            if (slope := slopes[number]) is not None:
                position = table.slots.position[:, :, : table.width]
                newest = positions[number][:, None].expand(-1, heads, -1)
                alibi = Alibi(slope.unflatten(1, (heads, -1)), position, newest)
            if (of_heads := sinks[number]) is not None:
                sink = of_heads.unflatten(1, (heads, -1))
            state = None if low_rank is None else LowRankState(low_rank, self.compressed_index, table.head_state)
            given = part, table.states()[0], table.bias(visible[number]), real[number], *common, state, alibi, sink
            passes.append(PassView(*given, hides=not table.is_dense))
            if not self.head_index.whole:
                passes[-1].members = partial(self.head_index.heads_in, number)
        passes[0].results = None if passes[0].has_state else call.results
        # Keep the newest queries if later decisions use them again.
        rows = self.settings.pipeline.recalled
        if rows and self.settings.compresses and not self.settings.in_second_pass:
            places = self.head_index.by_row(self.tokens_seen)
            for table, one, valid, tokens in zip(self.tables, passes, real, places, strict=True):
                one.recalled = recall(table, one.query, valid, tokens, rows)
        return passes

    def _report(
        self, passes: list[PassView], visible: Sequence[Slots], query: Tensor, output: Tensor
    ) -> PassView | None:
        """Report the pass to the observer and return it; a counting observer gets slots without scores."""
        observer = self.settings.observer
        if observer is None:
            return None
        reads_slots = self.settings.observes_slots
        watches = type(observer).attended is not Observer.attended  # else it reads decisions only
        tables = [table.add_scores(table.visible()) for table in self.tables] if reads_slots and watches else visible
        slots, whole = join_passes(self.head_index, passes, tables, query, reads_slots)
        if watches:
            observer.attended(self.layer_idx, slots, whole, output)
        return whole

    # what appending and batch changes do to the buckets

    def _mark_padding(self, row_valid: Tensor) -> list[bool]:
        """Exclude padding among the newest tokens from slots and from tokens seen.

        Returns for each bucket whether this pass gives it no token while others wait for a decision: it is not
        decided about.
        """
        columns = row_valid.shape[1]
        before = self.tokens_seen - columns
        position = before[:, None] + row_valid.cumsum(-1) - 1
        self.tokens_seen = before + row_valid.sum(-1)
        lengths = self.tokens_seen.tolist()
        counts = [now - then + columns for now, then in zip(lengths, self.lengths, strict=True)]
        self.lengths = lengths
        waits = self.prompt_compressed and self.settings.pipeline.decode and self.settings.period > 1
        if self.prompt_compressed and self.settings.store.packs:
            self.head_index, self.buckets = part_rows(self.head_index, self.buckets, counts)
        elif waits:
            waiting = [min(count, 1) for count in counts]
            self.head_index, self.buckets = part_rows(self.head_index, self.buckets, waiting)
        parts = zip(self.tables, self.head_index.by_row(row_valid), self.head_index.by_row(position), strict=True)
        for table, valid, place in parts:
            table.mark_padding(valid, place)
        idle = [waits and counts[self.head_index.row(members[0])] == 0 for members in self.head_index.members]
        for bucket in compress(self.buckets, idle):
            bucket.ahead -= columns
        return idle

    def _leave_inference_mode(self) -> None:
        """Copy what a pass in inference mode left, if that mode has ended: its tensors cannot change outside of it."""
        if self.is_initialized and self.tokens_seen.is_inference() and not torch.is_inference_mode_enabled():
            self._map_rows(torch.clone)

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if not self.buckets:
            return
        batch = len(self.lengths)
        self.tokens_seen = change(self.tokens_seen)
        self.bytes_read = None if self.bytes_read is None else change(self.bytes_read)
        if self.head_index.whole:
            rows = len(self.tokens_seen)
            heads = self.head_index.heads
            self.head_index = HeadIndex(rows, heads, heads, [list(range(rows))], self.device)
            self.buckets[0].map_rows(change)
        else:
            self.head_index, places = self.head_index.mapped(change(torch.arange(batch, device=self.device)).tolist())
            left = [(bucket, place) for bucket, place in zip(self.buckets, places, strict=True) if place]
            for bucket, place in left:
                bucket.map_rows(itemgetter(place))
            self.buckets = [bucket for bucket, _ in left]
            if self.head_budgets is not None:
                self.head_budgets.map_rows(change(self.head_budgets.slots))
        if len(self.lengths) != len(self.tokens_seen):
            self.lengths = self.tokens_seen.tolist()
        self.settings.held.record(self.compressed_index, self.table_bytes(), 0)


QUERIES = "recalled_queries"


def recall(
    table: SlotTable, query: Tensor, row_valid: Tensor | None, tokens_seen: Tensor, rows: int
) -> tuple[Tensor, Tensor]:
    """Return the last `rows` real queries (N, W * G, rows, d) and their positions (N, rows), and keep them in the
    table.

    `query` (N, W * G, q, d) belongs to this pass, `row_valid` (N, q) marks real queries, `tokens_seen` (N,) includes
    them. Rows before the start of the text are zeros at negative positions.
    """
    new = query.unflatten(1, (table.slots.keys.shape[1], -1))
    old = table.head_state.get(QUERIES)
    if old is None:
        old = new.new_zeros(*new.shape[:3], rows, new.shape[4])
    both = torch.cat([old, new], 3)
    if row_valid is not None and new.shape[3] > 1:  # padding moves to the front, real queries keep their order
        real = torch.cat([row_valid.new_ones(len(row_valid), rows), row_valid], 1)
        order = real.to(torch.uint8).argsort(stable=True, dim=-1)[:, -rows:]
        both = both.gather(3, order[:, None, None, :, None].expand(*both.shape[:3], rows, both.shape[4]))
    # With a single head the slice is contiguous already, and as a view it would keep all queries of the prompt alive.
    table.store_head_state({QUERIES: both[:, :, :, -rows:].clone(memory_format=torch.contiguous_format)})
    age = torch.arange(rows - 1, -1, -1, device=query.device)
    return table.head_state[QUERIES].flatten(1, 2), tokens_seen[:, None] - 1 - age
