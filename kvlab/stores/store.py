"""How a settled slot is held: the fifth choice of a method, beside score, allocate, select and settle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kvlab.common.errors import UserError
from kvlab.plugins.registry import Registry
from kvlab.requests.budget import AUTO, NATIVE, Budget, resolve_store
from kvlab.stores.code import Code
from kvlab.stores.eight_bit import Eight
from kvlab.stores.kivi import GROUP, PerChannel, PerToken
from kvlab.stores.turbo import Rotated

MOST = 65_536


@dataclass(frozen=True)
class Store:
    """A code for keys and one for values; without them slots stay as the model made them.

    The first `sinks` slots of a head and its newest `residual` stay native, while decoding at least its newest
    `gathered`, and what has come since slots were last packed, `lot` at a time. KIVI's authors keep 128 newest tokens
    and no sinks, TurboQuant's keep both; 128 would leave nothing to pack at budgets as compared here.
    """

    title: str
    keys: Code | None = None
    values: Code | None = None
    sinks: int = 4
    residual: int = 16
    paper: str = ""
    lot: int = 8  # slots packed at a time; a multiple of what a code takes together
    gathered: int = 0

    @property
    def packs(self) -> bool:
        """Whether slots are held in other than their own type."""
        return self.keys is not None

    def coded(self, live: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """(places (B, H, room), whether there is one) of what gets codes of a head's `live` (B, H) slots, in order.

        No head has more than `longest`; the room is in whole lots.
        """
        room = -(-max(longest - min(self.sinks, longest) - self.residual, 0) // self.lot) * self.lot
        place = min(self.sinks, longest) + torch.arange(room, device=live.device).expand(*live.shape, -1)
        return place.clamp_max(longest - 1), place < live[..., None] - self.residual


KIVI, TURBO = "https://arxiv.org/abs/2402.02750", "https://arxiv.org/abs/2504.19874"
STORES: Registry[Store] = Registry(
    "store",
    {
        NATIVE: Store("as the model made them"),
        "fp8": Store("float8 e4m3, a scale a slot", Eight("fp8"), Eight("fp8")),
        "int8": Store("8-bit whole numbers, a scale a slot", Eight("int8"), Eight("int8")),
        "kivi4": Store("KIVI, 4 bits", PerChannel(4), PerToken(4), paper=KIVI, lot=GROUP),
        "kivi2": Store("KIVI, 2 bits", PerChannel(2), PerToken(2), paper=KIVI, lot=GROUP),
        "turbo4": Store("TurboQuant, 4 bits", Rotated(4), Rotated(4), paper=TURBO),
        "turbo3": Store("TurboQuant, 3 bits", Rotated(3), Rotated(3), paper=TURBO),
        "lean4": Store("TurboQuant, 4 bits, all of a prompt but two", Rotated(4), Rotated(4), 1, 1, TURBO, gathered=16),
        AUTO: Store("lean4 for a budget in bytes, int8 from a third of them on, else native"),
    },
)


SETTINGS = {"sinks": 0, "residual": 1, "group": 2}  # with the least that each can be


def store_of(name: str) -> Store:
    """The store of that name, such as `kivi4`, or with settings, such as `kivi4/group=64/residual=128`.

    Raises UserError for an unknown store or setting.
    """
    base, *settings = name.split("/")
    if base not in STORES:
        raise STORES.unknown(base)
    return replace(STORES[base], **_changed(base, settings)) if settings else STORES[base]


def _changed(base: str, settings: list[str]) -> dict[str, Any]:
    """Fields of a store from words such as `residual=128`; a group is that of its keys, and packed at once."""
    store = STORES[base]
    found: dict[str, Any] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in SETTINGS or not text.isdigit() or not SETTINGS[key] <= int(text) <= MOST:
            known = ", ".join(f"{one} (at least {least})" for one, least in SETTINGS.items())
            raise UserError(f"{setting!r} is no setting of a store: write {known}, as in kivi4/group=64/residual=128.")
        if key != "group":
            found[key] = int(text)
        elif isinstance(store.keys, PerChannel):
            found |= {"keys": replace(store.keys, group=int(text)), "lot": int(text)}
        else:
            raise UserError(f"{base} has no groups of slots: leave {setting} out, or choose kivi4 or kivi2.")
    if not store.packs:
        raise UserError(f"{base} packs nothing, so it has no settings: leave {'/'.join(settings)} out.")
    return found


def store_under(name: str, budget: Budget) -> Store:
    """The store of that name, `auto` decided by the budget (`kvlab.requests.budget`)."""
    return store_of(resolve_store(name, budget))


def as_held(store: Store, code: Code | None, states: Tensor, order: Tensor, live: Tensor) -> Tensor:
    """(B, H, S, d) float32: `states` once the `live` (B, H) first slots of `order` (B, H, S) are packed.

    `order` is that of the text. What the store leaves native, and all other slots, are as they were.
    """
    states = states.float()
    if code is None:
        return states
    place, there = store.coded(live, int(live.max()))
    index = order.gather(2, place)[..., None].expand(*place.shape, states.shape[-1])
    own = states.gather(2, index)
    error = code.decode(code.encode(own, there), states.shape[-1]) - own
    return states.scatter_add(2, index, torch.where(there[..., None], error, 0.0))


@lru_cache
def store_bytes(store: Store, key_width: int, value_width: int) -> tuple[int, int]:
    """(bytes of a slot's own codes and scales, bytes that a lot of slots has together)."""
    own = shared = 0
    real = torch.ones(1, 1, store.lot, dtype=torch.bool)
    for code, width in ((store.keys, key_width), (store.values, value_width)):
        assert code is not None
        for name, tensor in code.encode(torch.zeros(1, 1, store.lot, width), real).items():
            if name in code.shared:
                shared += tensor.nbytes
            else:
                own += tensor[0, 0, 0].nbytes
    return own, shared


def bits_of(store: Store, width: int) -> float:
    """Bits a number of a key or value, what slots share included."""
    own, shared = store_bytes(store, width, width)
    return 8 * (own + shared / store.lot) / (2 * width)
