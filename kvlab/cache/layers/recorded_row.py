"""What an observer sees of a cache that holds two texts: the recorded one, in the first row, and the method's own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from kvlab.attention.low_rank_state import keeps_state
from kvlab.attention.pass_view import PassSeen
from kvlab.cache.buckets.bucket import Decision
from kvlab.cache.layers.layer_state import LayerState
from kvlab.cache.table.slot_table import SlotTable
from kvlab.methods.core.view import View

Value = TypeVar("Value")
# What a pass holds per row; the rest is the model's or that of a prompt.
OF_ROWS = (
    "query", "key", "bias", "row_valid", "hidden_states", "alibi", "sinks", "recalled", "along", "products",
    "_last_logits", "_last_mass", "_normalizers",
)  # fmt: skip


def can_hold_two_texts(layers: Sequence[LayerState]) -> bool:
    """Whether a second text can continue in a row of these layers, given what their observer reads.

    Counts are those of the first row in any case. An observer of slots needs the first row of every tensor, which is
    defined for one native table a layer, read as a whole.
    """
    settings = layers[0].settings
    if not settings.observes_slots:
        return True
    if settings.reading is not None or keeps_state(settings.pipeline):
        return False
    return all(layer.streams.whole and type(layer.buckets[0].table) is SlotTable for layer in layers)


def first_row(value: Value) -> Value:
    """The first batch row of a tensor, and of all tensors in dictionaries, tuples and dataclasses."""
    found: Any = value
    if isinstance(value, Tensor):
        found = value[:1]
    elif isinstance(value, dict):
        found = {name: first_row(part) for name, part in value.items()}
    elif isinstance(value, tuple):
        found = tuple(map(first_row, value))
    elif is_dataclass(value) and not isinstance(value, type):
        found = object.__new__(type(value))
        vars(found).update({name: first_row(part) for name, part in vars(value).items()})
    return found


def first_row_of_pass(seen: PassSeen) -> PassSeen:
    """The pass as the first row saw it; what is computed of it is not shared with the other row."""
    made = copy.copy(seen)
    vars(made).update({name: first_row(vars(seen)[name]) for name in OF_ROWS if name in vars(seen)})
    return made


def first_row_of_decision(decision: Decision, seen: PassSeen) -> Decision:
    """The decision about the first row, whose pass is `seen`."""
    view: View = decision.view
    own = {name: first_row(getattr(view, name)) for name in ("slots", "budget", "tokens_seen", "head_state")}
    view = replace(view, seen=seen, remembered={}, **own)
    return Decision(view, first_row(decision.plan), first_row(decision.before), first_row(decision.after))
