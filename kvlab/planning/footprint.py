"""A method's memory footprint and further passes as data from the registry, so that a plan needs no method code."""

from __future__ import annotations

from kvlab.common.limits import ROW_BLOCK
from kvlab.core.budget import Sizes
from kvlab.core.validation import Frozen

# Tokens up to which whole numbers take 16 bits: `kvlab.core.contract.slot_columns`, kept equal by a test.
SHORT_TEXT = 2**15 - 1


class PackedSlots(Frozen):
    """Size of a store's slots, in bytes of keys and values together; `width` is that of a key."""

    native: int  # slots that stay native at most
    lot: int  # slots packed together as a group
    lots: int  # groups that may be partly filled per head
    slot_bytes: float  # of each slot, whatever its width
    number_bytes: float  # and for each of the key's numbers
    lot_bytes: float  # of a group, for each of the key's numbers
    head_bytes: float = 0.0  # of a head, for each of the key's numbers
    lighter: int = 0  # bytes saved in a slot's metadata against a native table

    def sizes(self, token: int, slot: int, width: int, heads: int) -> Sizes:
        """Sizes of one KV head, given a native slot's `slot` bytes of which `token` are key and value."""
        slot -= self.lighter
        shared = self.lot_bytes * width
        packed = slot - token + self.slot_bytes + self.number_bytes * width + shared / self.lot
        return Sizes(token, slot, packed, self.native, round(self.lots * shared + self.head_bytes * width), heads)


class SecondPass(Frozen):
    """A second reading of the prompt before the decision, in pieces over the full cache."""

    piece: int  # tokens of the longest piece
    on_policy: bool  # repeated for every layer
    written: int  # tokens that the model generates for it
    references: int  # queries kept per query head for the decision

    def reads_as(self, other: SecondPass) -> bool:
        """Whether both read the same pieces, so that one pass serves both."""
        return (self.piece, self.written) == (other.piece, other.written)


class Footprint(Frozen):
    """A method's settings as far as memory and time depend on them; the defaults are those of plain eviction."""

    compresses: bool = True
    needs_budget: bool = True
    decode: bool = True  # also decides while decoding
    deferred: bool = False  # no layer is compressed before the last has read the prompt
    saves_prefill: bool = False
    seeks: bool = False  # merges: evicted slots search for their nearest slot
    buffer: int = 0  # generated tokens held on top of the budget between decisions
    recalled: int = 0  # queries kept per query head for the next decision
    grows: bool = False  # the table grows while decoding, though it decides at every step
    averages: bool = False  # log attention per query is averaged or observed, which takes more copies
    settle_copies: float = 0.0  # of keys in float32 that settling or scoring a prompt makes
    settle_numbers: float = 0.0  # and float32 numbers per slot of a KV head
    needs_hidden_states: bool = False
    slot_bytes: int = 6  # per slot of a KV head besides key and value, in a short text: position and score
    whole_numbers: int = 1  # of these, which take two more bytes in a long text
    query_head_bytes: int = 0  # and for each query head of the group
    head_bytes: int = 0  # per KV head besides its slots
    head_value_bytes: int = 0  # and for each number of a value
    head_keys: int = 0  # and this many keys
    stream_depths: int = 0  # states of the residual stream that a row keeps
    stream_window: int = 0  # changes of each of them that are scored together
    rows: int = ROW_BLOCK  # last queries of the prompt scored together
    all_rows: bool = True  # sums the attention of all queries, block by block
    block: int = 0  # prompt tokens per decision; 0: all of them
    again: SecondPass | None = None
    packed: PackedSlots | None = None  # slots in a store; None: native

    def metadata_bytes(self, group: int, tokens: int) -> int:
        """Bytes of one slot of one KV head besides key and value, in a text of `tokens` tokens."""
        wider = 2 * self.whole_numbers if tokens > SHORT_TEXT else 0
        return self.slot_bytes + wider + group * self.query_head_bytes

    @property
    def scored_rows(self) -> int:
        """Queries whose attention to all slots is in memory at once while the prompt is scored."""
        return ROW_BLOCK if self.all_rows else min(self.rows, ROW_BLOCK)

    def takes_chunks(self, chunk: int) -> bool:
        """Whether its prompt may come in chunks of this size (`kvlab.core.cache.chunked_prefill.check_chunks`)."""
        return not self.needs_hidden_states and not self.saves_prefill and self.rows <= chunk


FULL = Footprint(compresses=False, needs_budget=False, decode=False, rows=1, all_rows=False, slot_bytes=2)
