"""What a method's cache holds, as data from the registry, so that a plan needs no method code."""

from __future__ import annotations

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


class Footprint(Frozen):
    """A method's settings as far as its cache's size depends on them; the defaults are those of plain eviction."""

    compresses: bool = True
    needs_budget: bool = True
    decode: bool = True  # also decides while decoding
    seeks: bool = False  # merges: slots may store the length of their key
    buffer: int = 0  # generated tokens held on top of the budget between decisions
    recalled: int = 0  # queries kept per query head for the next decision
    slot_bytes: int = 6  # per slot of a KV head besides key and value, in a short text: position and score
    whole_numbers: int = 1  # of these, which take two more bytes in a long text
    query_head_bytes: int = 0  # and for each query head of the group
    head_bytes: int = 0  # per KV head besides its slots
    head_value_bytes: int = 0  # and for each number of a value
    head_keys: int = 0  # and this many keys
    packed: PackedSlots | None = None  # slots in a store; None: native

    def metadata_bytes(self, group: int, tokens: int) -> int:
        """Bytes of one slot of one KV head besides key and value, in a text of `tokens` tokens."""
        wider = 2 * self.whole_numbers if tokens > SHORT_TEXT else 0
        return self.slot_bytes + wider + group * self.query_head_bytes


FULL = Footprint(compresses=False, needs_budget=False, decode=False, slot_bytes=2)
