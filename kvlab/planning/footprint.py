"""What a method holds in memory and reads again, as data from the registry, so that a plan needs no method's code."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvlab.common.limits import ROW_BLOCK
from kvlab.requests.budget import Sizes

SHORT_TEXT = (
    2**15 - 1
)  # tokens up to which whole numbers take 16 bits: `kvlab.methods.core.slot_columns`, held equal by a test


class PackedSlots(BaseModel):
    """What a store's slots take, in bytes of keys and values together; `width` is that of a key."""

    model_config = ConfigDict(frozen=True)

    native: int  # slots that stay native at most
    lot: int  # slots packed together
    lots: int  # lots of which a head may have only a part
    slot_bytes: float  # of each slot, whatever its width
    number_bytes: float  # and for each of the key's numbers
    lot_bytes: float  # of a lot, for each of the key's numbers
    lighter: int = 0  # bytes that a slot's metadata takes less than in a native table

    def sizes(self, token: int, slot: int, width: int, heads: int) -> Sizes:
        """Sizes of one KV head where a slot of a native table takes `slot`, a `token` of it for key and value."""
        slot -= self.lighter
        shared = self.lot_bytes * width
        packed = slot - token + self.slot_bytes + self.number_bytes * width + shared / self.lot
        return Sizes(token, slot, packed, self.native, round(self.lots * shared), heads)


class SecondPass(BaseModel):
    """What a method reads once more before it decides: the prompt, in pieces over the full cache."""

    model_config = ConfigDict(frozen=True)

    piece: int  # tokens of the longest piece
    on_policy: bool  # once for every layer
    written: int  # tokens that the model writes to be read with it
    references: int  # of its queries, how many a query head keeps for the decision


class Footprint(BaseModel):
    """A method's settings as far as memory and time depend on them. The defaults are a plain eviction method's."""

    model_config = ConfigDict(frozen=True)

    compresses: bool = True
    needs_budget: bool = True
    decode: bool = True  # it also decides while decoding
    deferred: bool = False  # no layer is compressed before the last one has seen the prompt
    saves_prefill: bool = False
    seeks: bool = False  # what leaves looks for its nearest slot
    buffer: int = 0  # generated tokens that gather on top of its budget between decisions
    recalled: int = 0  # queries of each query head that it keeps for the next decision
    grows: bool = False  # its table gets longer while decoding, though it decides at every step
    averages: bool = False  # each query's log attention is averaged or observed, which takes more copies of it
    settle_copies: float = 0.0  # of keys in float32 that settling or scoring a prompt makes
    settle_numbers: float = 0.0  # and float32 numbers a slot of a KV head
    needs_hidden_states: bool = False
    slot_bytes: int = 6  # of a slot of a KV head beside key and value, in a short text: position and score
    whole_numbers: int = 1  # of them, which take two bytes more in a long text
    query_head_bytes: int = 0  # and for each query head of the group
    head_bytes: int = 0  # of a KV head beside its slots
    head_value_bytes: int = 0  # and for each number of a value
    head_keys: int = 0  # and so many keys
    rows: int = ROW_BLOCK  # last queries of a prompt it looks at together
    all_rows: bool = True  # it adds up the attention of all queries, block by block
    block: int = 0  # tokens of a prompt that a layer takes in before it decides; 0: all of them
    again: SecondPass | None = None
    packed: PackedSlots | None = None  # slots are held in a store's code; None: natively

    def metadata_bytes(self, group: int, tokens: int) -> int:
        """Bytes of one slot of one KV head beside its key and value, in a text of `tokens` tokens."""
        wider = 2 * self.whole_numbers if tokens > SHORT_TEXT else 0
        return self.slot_bytes + wider + group * self.query_head_bytes

    @property
    def scored_rows(self) -> int:
        """Queries whose attention to all slots lies in memory at once while the prompt is scored."""
        return ROW_BLOCK if self.all_rows else min(self.rows, ROW_BLOCK)

    def takes_chunks(self, chunk: int) -> bool:
        """Whether its prompt may come in chunks of so many tokens (`kvlab.cache.chunked_prefill.check_chunks`)."""
        return not self.needs_hidden_states and not self.saves_prefill and self.rows <= chunk


FULL = Footprint(compresses=False, needs_budget=False, decode=False, rows=1, all_rows=False, slot_bytes=2)
