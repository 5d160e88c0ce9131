"""One request for one model, as the numbers that all formulas use. B is always one: a comparison has one prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from kvlab.common.limits import MOST_PROMPT_LOGITS, ROW_BLOCK
from kvlab.core.budget import UNLIMITED, Amount, Budget, Sizes
from kvlab.core.table_growth import room_to_grow
from kvlab.model_info.size import Model
from kvlab.planning.footprint import FULL, Footprint, SecondPass
from kvlab.requests.compare import RecordLevel
from kvlab.requests.recording import Recording

EVERYTHING = Recording()
FLOAT = 4  # scores, logits and everything measured are float32
# Counted with torch's allocator: copies of float32 logits that are averaged or observed, of those that are written out
# where no fused kernel takes them, in full and in sliding layers; what a tile of attention takes with what is made of
# it, and its queries (`kvlab.core.attention.tiles`); and what kernels take beside their results.
AVERAGED_COPIES, WRITTEN_COPIES, WRITTEN_IN_WINDOW = 5, 3, 3.5
REFERRED_COPIES = 4.7  # of the attention of queries that a decision refers to: 4.6 and 4.7 of two shapes
TILES, TILE_ROWS = 2 * 2**20, 128
PACKED_FROM = 64  # queries of a pass for which torch's kernel packs keys and values where a CPU has tiles
WORKSPACE = 500_000
LENGTHS_FROM = 512  # `kvlab.core.contract.slot_columns`, kept equal by a test


@dataclass(frozen=True)
class Workload:
    """T prompt tokens and up to n new ones at `number` bytes per weight."""

    model: Model
    tokens: int
    new_tokens: int
    number: int
    weight_bytes: int
    level: RecordLevel
    compress_every: int = 1
    chunk: int | None = None
    record: Recording = EVERYTHING
    packs: bool = False  # bfloat16 on a CPU with tiles: keys and values are packed for every query head

    @property
    def queries(self) -> int:
        return min(self.tokens, self.chunk or self.tokens)

    @property
    def chunked(self) -> bool:
        return self.queries < self.tokens

    @property
    def seen(self) -> int:
        """Tokens in the end: the last new one is not fed back to the model."""
        return self.tokens + self.new_tokens - 1

    # one layer

    def slot_bytes(self, holds: Footprint) -> int:
        """Bytes of a slot in all KV heads of a layer: key, value and metadata."""
        return self.model.key_value_heads * (self.sizes(holds).slot + (holds.packed.lighter if holds.packed else 0))

    def kept_bytes(self, holds: Footprint, slots: int) -> int:
        """Bytes of a table of `slots` slots in all KV heads of a layer, in the method's store."""
        return self.model.key_value_heads * math.ceil(self.sizes(holds).bytes_of(slots))

    def sizes(self, holds: Footprint) -> Sizes:
        """Bytes of the slots of one KV head."""
        model = self.model
        token, heads = 2 * model.head_dim * self.number, model.full_layers * model.key_value_heads
        length = FLOAT if holds.seeks and token >= LENGTHS_FROM else 0  # of the key, though on a CPU alone
        slot = token + length + holds.metadata_bytes(model.group, self.seen)
        if holds.packed is None:
            return Sizes(token, slot, slot, heads=heads)
        return holds.packed.sizes(token, slot, model.head_dim, heads)

    def first_slots(self, holds: Footprint, budget: Amount) -> int:
        """Allocated slots per KV head after the prompt was compressed, mean over layers and heads."""
        kept = self._kept(holds, budget)
        if kept >= self.tokens:
            return self.tokens
        room = room_to_grow(kept)
        return min(kept, self.tokens) + (min(self.period(holds), room) if holds.decode else room)

    def last_slots(self, holds: Footprint, budget: Amount) -> int:
        """The same after the last decode step, with the free slots of a growing table."""
        kept, room = self._kept(holds, budget), self.first_slots(holds, budget)
        held = min(kept, self.tokens) + self.new_tokens - 1
        if holds.decode and holds.compresses and not holds.grows:
            held = min(held, kept + self.period(holds))
        while room < held:
            room += 1 + room_to_grow(room)
        return room

    def drops(self, holds: Footprint, budget: Amount) -> bool:
        """Whether anything of the prompt is dropped."""
        return self._kept(holds, budget) < self.tokens

    def recalled_bytes(self, holds: Footprint) -> int:
        """Bytes kept for the next decision besides slots: queries, state per head, and the residual stream's."""
        model = self.model
        stream = holds.stream_depths * (model.hidden * self.number + 4 * (holds.stream_window - 1))
        stream += 8 if holds.stream_depths else 0  # the number of changes
        queries = holds.recalled * model.heads * model.head_dim * self.number
        of_width = holds.head_value_bytes + holds.head_keys * self.number
        return stream + model.full_layers * (
            queries + model.key_value_heads * (holds.head_bytes + model.head_dim * of_width)
        )

    def period(self, holds: Footprint) -> int:
        """Decode steps between decisions (`kvlab.core.cache.settings.LayerSettings.period`)."""
        return self.compress_every - 1 + max(holds.buffer, 1)

    def _kept(self, holds: Footprint, budget: Amount) -> int:
        if not holds.compresses or not holds.needs_budget:
            return UNLIMITED  # unknown without a budget: at most everything
        slots = Budget(budget).slots(self.tokens, self.sizes(holds))
        slack = self.compress_every - 1 if holds.decode else 0
        return slots if slots >= UNLIMITED else max(1, slots - slack)

    # passes

    def sliding_bytes(self) -> int:
        """Keys and values of the sliding-window layers."""
        model = self.model
        held = min(model.window, self.seen)
        return model.sliding_layers * held * 2 * model.key_value_heads * model.head_dim * self.number

    def attention_bytes(self, holds: Footprint | None = None, budget: Amount = 1.0) -> int:
        """Working memory of one layer's attention over the prompt, and of a method's scoring."""
        model, rows, number = self.model, self.queries, self.number
        query, hidden = model.heads * model.head_dim * number, model.hidden * number
        state = 2 * model.key_value_heads * model.head_dim * number
        constant = 2 * hidden + 2 * model.head_dim * number
        # Queries, keys and values repeated and packed, and the output; or queries and keys while they are rotated.
        whole = 2 * query * self.tokens // rows
        # With decisions in blocks only a block's slots are packed, which are small.
        packs = self.packs and rows >= PACKED_FROM and not (holds and holds.block)
        copies = (model.group > 1) + packs
        repeated = 2 * query + copies * whole if copies else 0
        plain = rows * (constant + max(repeated, 3 * query + state)) + WORKSPACE
        if model.written_out and model.full_layers:
            block = min(ROW_BLOCK, rows)
            written = WRITTEN_COPIES * model.heads * block * self.tokens * FLOAT
            plain = max(plain, self.states_bytes() + written)
        return plain if holds is None else max(plain, self.states_bytes() + self.scoring_bytes(holds, budget))

    def scoring_bytes(self, holds: Footprint, budget: Amount) -> int:
        """Working memory of a method's scoring of one layer's prompt, and of what is made of it."""
        return self._decided(holds, budget)._scoring(holds)

    def _decided(self, holds: Footprint, budget: Amount) -> Workload:
        """The prompt as one decision sees it: all, or what is kept plus a block."""
        if not holds.block:
            return self
        return replace(self, tokens=min(self.tokens, self._kept(holds, budget) + holds.block), chunk=holds.block)

    def reference_bytes(self, again: SecondPass) -> int:
        """Queries of the second pass that all layers keep."""
        model = self.model
        return model.full_layers * again.references * model.heads * model.head_dim * self.number

    def referred_bytes(self, again: SecondPass) -> int:
        """The attention of these queries in one layer, and what is fitted to it."""
        return int(REFERRED_COPIES * self.model.heads * again.references * self.tokens * FLOAT)

    def read_again(self, again: SecondPass) -> Workload:
        """The longest piece of the prompt, read a second time after all of it."""
        piece = min(again.piece, self.tokens)
        return replace(self, tokens=self.tokens + piece, chunk=piece)

    def reading_bytes(self, holds: Footprint) -> int:
        """Working memory of one layer that reads a piece over existing slots: in row blocks, masked, then joined."""
        output = self.queries * self.model.heads * self.model.head_dim * self.number
        attended = self.attention_bytes() + output + min(ROW_BLOCK, self.queries) * self.tokens * self.number
        scored = self.scoring_bytes(holds.model_copy(update={"all_rows": True}), 1.0)
        return max(attended, self.states_bytes() + scored)

    def states_bytes(self) -> int:
        """A layer's states around its attention: residual, normed states, queries and output."""
        model = self.model
        states = 2 * model.hidden + 2 * model.head_dim + 2 * model.heads * model.head_dim
        return self.queries * states * self.number

    def _scoring(self, holds: Footprint) -> int:
        model = self.model
        block = min(holds.scored_rows, self.queries)
        logits = AVERAGED_COPIES * model.heads * block * self.tokens * FLOAT
        # A tile, and the keys in float32 with one coordinate more, made from a copy where they are not.
        copies = 1 if self.number == FLOAT else 2
        tile = 2 * model.heads * min(block, TILE_ROWS) * self.tokens * FLOAT
        summed = copies * model.key_value_heads * self.tokens * (model.head_dim + 1) * FLOAT + min(TILES, tile)
        if not holds.all_rows and holds.rows == 1:
            summed = 0  # it needs no query
        # Unit sources and keys, and the similarity of a block of sources to what stays, taken for half the prompt.
        extra = 2 * model.head_dim + ROW_BLOCK // 2
        sought = model.key_value_heads * self.tokens * extra * FLOAT if holds.seeks else 0
        numbers = model.head_dim * holds.settle_copies + holds.settle_numbers
        settled = int(model.key_value_heads * self.tokens * numbers * FLOAT)
        settled += logits // AVERAGED_COPIES if holds.averages else 0
        return max(logits if holds.averages else summed, sought, settled)

    def sliding_attention_bytes(self) -> int:
        """Working memory of a sliding layer's attention, in row blocks over the slots a block can see."""
        model, rows, number = self.model, min(ROW_BLOCK, self.queries), self.number
        if not model.sliding_layers:
            return 0
        columns = min(model.window + rows - 1, self.tokens)
        output = self.queries * model.heads * model.head_dim * number
        states = 2 * 2 * model.key_value_heads * self.queries * model.head_dim * number  # native, and as stored
        packed = number if self.packs and rows >= PACKED_FROM else 0
        repeated = 2 * model.heads * columns * model.head_dim * (number + (FLOAT if model.written_out else packed))
        logits = WRITTEN_IN_WINDOW * model.heads * FLOAT if model.written_out else 1  # else the mask
        block = repeated + int(rows * columns * logits)
        # Packing ends before the output is joined; everything else next to a block counts as one more output.
        extra = 0 if packed else output
        return self.states_bytes() + states + max(2 * output, extra + block) + WORKSPACE

    def feed_forward_bytes(self) -> int:
        """Working memory of one layer's feed-forward over the prompt: gate, up, their product, and the states."""
        model = self.model
        states = 3 * model.intermediate + 3 * model.hidden + 2 * model.head_dim
        return self.queries * self.number * states + WORKSPACE

    def logits_bytes(self) -> int:
        """The prompt's logits in float32 and their log-softmax; only the last token's if all would be too many."""
        return 2 * self._logits_rows() * self.model.vocabulary * FLOAT

    def prompt_logits_bytes(self) -> int:
        """The same as the model returns them."""
        return self._logits_rows() * self.model.vocabulary * self.number

    def _logits_rows(self) -> int:
        return self.queries if self.tokens * self.model.vocabulary <= MOST_PROMPT_LOGITS else 1

    def kept_rows_bytes(self) -> int:
        """Log-probabilities of every new token, of one pass."""
        return self.new_tokens * self.model.vocabulary * FLOAT


@dataclass(frozen=True)
class PlannedCache:
    """A run's cache: its name in legends, its method's footprint and its budget."""

    work: Workload
    label: str
    holds: Footprint
    budget: Amount

    @property
    def is_full(self) -> bool:
        """Whether it is a full cache."""
        return not self.holds.compresses

    @cached_property
    def drops(self) -> bool:
        """Whether anything of the prompt is dropped or packed."""
        return self.holds.packed is not None or self.work.drops(self.holds, self.budget)

    @property
    def waits(self) -> bool:
        """Whether no layer is compressed before the last one has read the prompt."""
        return self.drops and (self.holds.deferred or self.holds.again is not None)

    @property
    def settles(self) -> bool:
        """Whether each layer is compressed as soon as it has read the prompt."""
        return self.drops and not self.waits

    def columns(self, tokens: int) -> int:
        """Metadata of so many slots in one layer, without keys and values."""
        return self.work.slot_bytes(self.holds) * tokens - states_bytes(self.work, tokens)

    @cached_property
    def first(self) -> int:
        """A layer's table after the prompt, in tensors of its own."""
        if not self.drops:
            return self.work.slot_bytes(self.holds) * self.work.tokens
        return self.work.kept_bytes(self.holds, self.work.first_slots(self.holds, self.budget))

    @cached_property
    def last(self) -> int:
        """A layer's table after the last decode step."""
        return self.work.kept_bytes(self.holds, self.work.last_slots(self.holds, self.budget))

    @property
    def grows(self) -> bool:
        """Whether its tables are copied into longer ones while decoding."""
        return self.work.last_slots(self.holds, self.budget) > self.work.first_slots(self.holds, self.budget)

    @property
    def beside(self) -> int:
        """Bytes that all layers keep for the next decision besides slots."""
        return self.work.recalled_bytes(self.holds)

    @property
    def settled(self) -> int:
        """The cache after the prompt, in tensors of its own."""
        return self.work.model.full_layers * self.first + self.beside

    @property
    def ended(self) -> int:
        """The cache after the last decode step."""
        return self.work.model.full_layers * self.last + self.beside

    @property
    def results(self) -> int:
        """Scores of a layer that other caches of the pass may use: logits of its last queries, and a sum per slot."""
        if self.is_full:
            return 0
        work = self.work
        logits = work.model.heads * min(self.holds.scored_rows, work.queries) if self.holds.averages else 0
        return (logits + work.model.key_value_heads) * work.tokens * FLOAT


def full_cache(work: Workload) -> PlannedCache:
    """The full cache that leads a pass."""
    return PlannedCache(work, "full cache", FULL, 1.0)


def states_bytes(work: Workload, tokens: int) -> int:
    """Keys and values of one layer."""
    return 2 * work.model.key_value_heads * work.model.head_dim * work.number * tokens
