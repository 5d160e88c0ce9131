"""Hand the cache layer of a pass and the module's hidden states to the attention function.

transformers passes the tensors returned by `Cache.update` to the attention function, but not the cache. The cache
stores the layer here; the attention function, called next in the same thread, takes it if it received those very keys.
Scorers that compute their own queries need the hidden states, which hooks store likewise.
"""

import time
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Result = TypeVar("Result")


@dataclass(eq=False)
class PassResults:
    """Results of one layer's pass, by name and arguments; nobody may change them in place.

    `charged` sums the seconds that known results took to compute, so that a cache that reuses them can still tell what
    it would take alone. `now` is the clock; on a GPU it must wait for the device to mean anything. `row_weights` (q,)
    are weights of the pass's queries in sums of attention that caches will ask for, `largest` and `squares` the number
    of first slots whose largest attention and sum of squares they will ask for, so that they are computed together.

    Attention computes them on its way if every cache of the pass asks (`on_the_way`): it then takes longer than the
    fused kernel, which no other cache may be charged for. `aside` sums the seconds of the statistics, which are charged
    to the caches that ask for them.
    """

    now: Callable[[], float] = time.perf_counter
    charged: float = 0.0
    aside: float = 0.0
    on_the_way: bool = False
    row_weights: list[Tensor] = field(default_factory=list)
    largest: int | None = None
    squares: int | None = None
    _known: dict[Hashable, list[tuple[Tensor | None, Any, float]]] = field(default_factory=dict, init=False)

    def get(self, name: Hashable, compute: Callable[[], Result], given: Tensor | None = None) -> Result:
        """The result called `name`, of `compute` unless it is known; results for different tensors `given` differ."""
        known = self._known.setdefault(name, [])
        for argument, result, seconds in known:
            if argument is given or (argument is not None and given is not None and torch.equal(argument, given)):
                self.charged += seconds
                return result
        begun = self.now()
        aside = self.aside
        charged = self.charged
        result = compute()
        aside = self.aside - aside
        # Who takes this over is charged for what it took and for the known results that it used.
        known.append((given, result, self.now() - begun - aside + self.charged - charged))
        self.charged -= aside
        return result

    def add(self, name: Hashable, result: object, seconds: float) -> None:
        """Note a result that something else has computed on its way."""
        self._known[name] = [(None, result, seconds)]

    def knows(self, name: Hashable) -> bool:
        return name in self._known

    def of_part(self, name: str, part: object, compute: Callable[[], Result]) -> Result:
        """A result that is the same for all caches with an equal `part` of their method; computed anew if the part
        cannot be hashed."""
        try:
            hash(part)
        except TypeError:
            return compute()
        return self.get((name, part), compute)

    def expect(self, weight: Tensor) -> None:
        """Note weights that a cache will ask for."""
        if not any(torch.equal(weight, known) for known in self.row_weights):
            self.row_weights.append(weight)

    def place_of(self, weight: Tensor) -> int | None:
        """The place among `row_weights`; None if these weights were not expected."""
        return next((place for place, known in enumerate(self.row_weights) if torch.equal(weight, known)), None)


class AttentionCall(NamedTuple):
    """Arguments of an attention call besides queries, keys and values; a tuple because one is created per layer and
    step.
    """

    scaling: float
    softcap: float | None = None
    padding: Tensor | None = None  # (B, tokens seen)
    module: nn.Module | None = None  # the calling attention module
    slopes: Tensor | None = None  # (Hq,) ALiBi slopes
    sinks: Tensor | None = None  # (Hq,) learned-sink logits
    hidden_states: Tensor | None = None  # (B, q, hidden) input of the module, if recorded
    results: PassResults | None = None  # of a pass that several caches share


class AttendingLayer(Protocol):
    """A cache layer that computes its own attention."""

    layer_idx: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention output (B, Hq, q, d)."""


_offered: ContextVar[tuple[AttendingLayer, Tensor] | None] = ContextVar("kvlab_offered_layer", default=None)


def offer_layer(layer: AttendingLayer, keys: Tensor) -> None:
    """Store `layer` for the attention call that receives `keys`."""
    _offered.set((layer, keys))


def take_offered_layer(keys: Tensor) -> AttendingLayer | None:
    """The layer that offered these keys, or None if they are not from a compressed layer."""
    offered = _offered.get()
    _offered.set(None)
    return offered[0] if offered is not None and offered[1] is keys else None


_given: ContextVar[tuple[nn.Module, Tensor] | None] = ContextVar("kvlab_hidden_states", default=None)
_WATCHED = "_kvlab_watches_hidden_states"


def watch_hidden_states(model: nn.Module) -> None:
    """Record the hidden states each attention module receives (idempotent)."""
    if getattr(model, _WATCHED, False):
        return
    for module in model.modules():
        if hasattr(module, "layer_idx") and any(hasattr(module, name) for name in PROJECTIONS):
            module.register_forward_pre_hook(_record, with_kwargs=True)
    setattr(model, _WATCHED, True)


def take_hidden_states(module: nn.Module) -> Tensor | None:
    """Hidden states (B, q, hidden) that `module` is processing, after the input norm; None if not recorded."""
    given = _given.get()
    _given.set(None)
    return given[1] if given is not None and given[0] is module else None


PROJECTIONS = ("q_proj", "qkv_proj", "query_key_value", "Wqkv")


def _record(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    states = named.get("hidden_states", positional[0] if positional else None)
    if isinstance(states, Tensor):
        _given.set((module, states.detach()))


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a model, in order; empty if they are not one list."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    return next(lists, nn.ModuleList())
