"""The state of a cache as plain values and tensors by name, and back: what a file needs to hold it.

One walk serves every method. Slots, head state, counters and random generators are found by name in the objects that
hold them, so that a new method needs no code here; a new class of state does (`CLASSES`), and the walk refuses what it
does not know. What follows from the method and the model is left out (`DERIVED`): the cache that a state is restored
into is made for them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor

from kvlab.core.cache.buckets.bucket import Bucket, HeadBudgets
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.rotary import RotaryOfPasses
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.cache.table.head_index import HeadIndex
from kvlab.core.cache.table.packed_table import PackedTable
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract import NEVER, Rotary, Slots, is_constant
from kvlab.core.errors import UserError

CLASSES: dict[str, type] = {
    kind.__name__: kind for kind in (Bucket, HeadBudgets, SlotTable, PackedTable, Slots, Rotary, RotaryOfPasses)
}
# Names in files of earlier versions.
RENAMED = {
    "Quota": "HeadBudgets",
    "quota": "head_budgets",
    "prompt_settled": "prompt_compressed",
    "rank": "compressed_index",
    "streams": "head_index",
}
# Attributes that settings and device determine, or that are made again when they are needed.
Derive = Callable[[LayerSettings, torch.device], Any]
TABLE: dict[str, Derive] = {
    "columns": lambda settings, device: settings.pipeline.columns,
    "never": lambda settings, device: torch.full((), NEVER, dtype=torch.float32, device=device),
    "shares_states": lambda settings, device: False,
    "_slots_bytes": lambda settings, device: None,
    "_leading": lambda settings, device: None,
    "_tensors": lambda settings, device: None,
}
DERIVED: dict[type, dict[str, Derive]] = {
    Bucket: {
        "last_work": lambda settings, device: ((), None),
        "index": lambda settings, device: None,
        "index_counts": lambda settings, device: False,
        "index_summarises": lambda settings, device: False,
        "indexed": lambda settings, device: None,
        "last_read": lambda settings, device: None,
    },
    HeadBudgets: {"remembered": lambda settings, device: {}},
    SlotTable: TABLE,
    PackedTable: TABLE
    | {
        "scheme": lambda settings, device: settings.store,
        "codes": lambda settings, device: {
            side: code
            for side, code in (("keys", settings.store.keys), ("values", settings.store.values))
            if code is not None
        },
    },
}
OF_CACHE = ("settings", "_rotary", "_changing")  # attributes that a new cache has already
# Allocators' statistics are not among them: they are as large as the prompt, and used once, when it is compressed.
OF_SETTINGS = ("prompt_tokens", "text_tokens", "prefill_compress_seconds", "second_pass_seconds")
OTHER_LAYOUT = (
    "This cache was kept by a version of kvlab that laid caches out in another way, or for a model with other layers: "
    "read the text again."
)


@dataclass(frozen=True)
class CacheState:
    """`values` is JSON; `tensors` are contiguous and named by their place, such as `layers.0.tokens_seen`."""

    values: dict[str, JsonValue]
    tensors: dict[str, Tensor]


def state_of(cache: CompressedCache) -> CacheState:
    """The state of a cache between two passes; tensors are the cache's own wherever they are contiguous.

    What kernels remember of their last decision is dropped from the cache, because it changes how the next step rounds,
    and so is an index of sparse attention, which is built anew: so this cache and the restored one go on bit for bit
    alike.

    Raises:
        UserError: the prompt's decision is still to come.
        TypeError: the cache holds an object that the walk does not know.
    """
    settings = cache.settings
    walk = _Walk()
    if settings.pending is not None or settings.unattended is not None:
        raise UserError("The decision about this cache's prompt is still to come: finish the pass before you keep it.")
    for layer in cache.compressed_layers():
        for bucket in layer.buckets:
            bucket.last_work = ((), None)
            bucket.index = None
    values: dict[str, JsonValue] = {
        "settings": {name: walk.encode(getattr(settings, name), f"settings.{name}") for name in OF_SETTINGS},
        "read_again": settings.second_pass is not None and settings.second_pass.done,
        "layers": [
            {"class": type(layer).__name__, **walk.encode_attributes(layer, f"layers.{index}", OF_CACHE)}
            for index, layer in enumerate(cache.layers)
        ],
    }
    return CacheState(values, walk.tensors)


def restore_state(cache: CompressedCache, state: CacheState, device: torch.device) -> None:
    """Put a state into an empty cache that was made for the same model, method, budget and store.

    Tensors on `device` are used as they are, so that those of a mapped file are read when they are needed. Raises
    UserError if the state does not fit the cache.
    """
    values: Any = state.values
    build = _Build(state.tensors, cache.settings, device)
    try:
        if [type(layer).__name__ for layer in cache.layers] != [layer["class"] for layer in values["layers"]]:
            raise UserError(OTHER_LAYOUT)
        for name in OF_SETTINGS:
            setattr(cache.settings, name, build.decode(values["settings"][name]))
        if cache.settings.second_pass is not None:
            cache.settings.second_pass.done = values["read_again"]
        for layer, saved in zip(cache.layers, values["layers"], strict=True):
            build.into(layer, {name: value for name, value in saved.items() if name != "class"})
        for layer in cache.compressed_layers():
            if layer.buckets:
                cache.settings.held.record(layer.compressed_index, layer.table_bytes(), layer.table_bytes())
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(OTHER_LAYOUT) from error


@dataclass(eq=False)
class _Walk:
    """Values of objects as JSON; an object or tensor that is met twice is written once."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    known: dict[int, str] = field(default_factory=dict)

    def encode(self, value: Any, place: str) -> JsonValue:
        """A value as JSON; tensors go to `tensors` under the name of their `place`."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self.known:
            return {"same": self.known[id(value)]}
        if isinstance(value, Tensor):
            if value.dim() and value.numel() and is_constant(value):
                return {"constant": value.flatten()[0].item(), "shape": list(value.shape), "dtype": _name(value.dtype)}
            self.known[id(value)] = place
            strides = value.stride()
            order = sorted(range(value.dim()), key=lambda dim: -strides[dim])  # as laid out in memory
            self.tensors[place] = value.permute(order).contiguous()
            return {"tensor": place} if order == sorted(order) else {"tensor": place, "order": [*order]}
        if type(value) in (list, tuple):
            each: list[JsonValue] = [self.encode(one, f"{place}.{index}") for index, one in enumerate(value)]
            return each if type(value) is list else {"tuple": each}
        if type(value) is dict:
            return {"dict": [[name, self.encode(one, f"{place}.{name}")] for name, one in value.items()]}
        if isinstance(value, torch.dtype):
            return {"dtype": _name(value)}
        if isinstance(value, torch.device):
            return {"device": True}
        if isinstance(value, torch.Generator):  # the seed, and the state if numbers were drawn: it takes 5 kB
            seed = value.initial_seed()
            state = value.get_state()
            if torch.equal(state, torch.Generator(value.device).manual_seed(seed).get_state()):
                return {"generator": seed}
            self.tensors[place] = state
            return {"generator": seed, "drawn": place}
        if isinstance(value, HeadIndex):
            return {"head_index": [value.batch, value.heads, value.width, [list(member) for member in value.members]]}
        kind = type(value)
        if CLASSES.get(kind.__name__) is not kind:
            raise TypeError(f"A cache with a {kind.__name__} ({place}) cannot be kept: name it in {__name__}.CLASSES.")
        self.known[id(value)] = place
        attributes = self.encode_attributes(value, place, (*OF_CACHE, *DERIVED.get(kind, {})))
        return {"object": kind.__name__, "place": place, "attributes": attributes}

    def encode_attributes(self, value: Any, place: str, left_out: Iterable[str]) -> dict[str, JsonValue]:
        """All attributes of an object but those that are left out, by name."""
        attributes = {name: one for name, one in vars(value).items() if name not in left_out}
        return {name: self.encode(one, f"{place}.{name}") for name, one in attributes.items()}


@dataclass(eq=False)
class _Build:
    """The inverse of `_Walk`: objects from JSON and tensors."""

    tensors: Mapping[str, Tensor]
    settings: LayerSettings
    device: torch.device
    known: dict[str, Any] = field(default_factory=dict)

    def into(self, existing: Any, attributes: Mapping[str, Any]) -> None:
        """Set attributes of an object; one that holds settings keeps them and takes over the rest."""
        for saved_name, value in attributes.items():
            name = RENAMED.get(saved_name, saved_name)
            current = vars(existing).get(name)
            if isinstance(current, RotaryOfPasses):
                self.into(current, value["attributes"])
            else:
                setattr(existing, name, self.decode(value))

    def decode(self, value: Any) -> Any:
        """Decode a JSON value of the saved state."""
        if isinstance(value, list):
            return [self.decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        match value:
            case {"same": place}:
                return self.known[place]
            case {"object": _, "place": place, "attributes": attributes}:
                saved_name: str = value["object"]
                kind = CLASSES[RENAMED.get(saved_name, saved_name)]
                made: Any = object.__new__(kind)
                self.known[place] = made
                vars(made).update({RENAMED.get(name, name): self.decode(one) for name, one in attributes.items()})
                derived = DERIVED.get(kind, {}).items()
                vars(made).update({name: derive(self.settings, self.device) for name, derive in derived})
                return made
            case {"tensor": place}:
                found = self.tensors[place].to(self.device)
                order = value.get("order")
                if order is not None:
                    found = found.permute([order.index(dim) for dim in range(len(order))])
                self.known[place] = found
                return found
            case {"constant": number, "shape": shape, "dtype": name}:
                number = torch.tensor(number, dtype=getattr(torch, name), device=self.device)
                return torch.as_strided(number, shape, (0,) * len(shape))
            case {"tuple": each}:
                return tuple(self.decode(one) for one in each)
            case {"dict": pairs}:
                return {name: self.decode(one) for name, one in pairs}
            case {"dtype": name}:
                return getattr(torch, name)
            case {"device": _}:
                return self.device
            case {"generator": seed}:
                generator = torch.Generator(self.device).manual_seed(seed)
                if "drawn" in value:
                    generator.set_state(self.tensors[value["drawn"]].clone())
                return generator
            case {"streams": [rows, heads, width, members]} | {"head_index": [rows, heads, width, members]}:
                return HeadIndex(rows, heads, width, members, self.device)
        raise KeyError(f"A value of unknown kind: {list(value)}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
