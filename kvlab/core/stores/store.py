"""Storage format of settled slots: the fifth choice of a method, after score, allocate, select and settle."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, get_args

import torch
from torch import Tensor

from kvlab.core.budget import ADAPTIVE, AUTO, NATIVE, UNLIMITED, Budget, resolve_store
from kvlab.core.errors import UserError
from kvlab.core.plugins.load import Registry
from kvlab.core.stores.code import Code, Coded, Learning, half
from kvlab.core.stores.eight_bit import Eight, Plain
from kvlab.core.stores.ggml import Blocks, Format
from kvlab.core.stores.kivi import GROUP, PerChannel, PerToken
from kvlab.core.stores.low_rank import LowRank, Residual
from kvlab.core.stores.quantized_states import Turn
from kvlab.core.stores.turbo import Rotated


@dataclass(frozen=True)
class KeptChannels(Learning):
    """The other channels in 16 bits each, and their numbers in 16 bits per head."""

    pruned: int  # percent of the channels
    channels: Tensor | None = field(default=None, compare=False, repr=False)  # (B, H, k) int16; None: the first
    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    def learn(self, states: Tensor, valid: Tensor, query_squares: Tensor | None) -> dict[str, Tensor]:
        """The channels with the largest sums of squares of keys times those of queries; keys alone if None."""
        score = states.float().square().masked_fill(~valid[..., None], 0.0).sum(2)
        score = score if query_squares is None else score * query_squares.float()
        best = score.topk(self._kept(states.shape[-1])).indices.sort(-1).values
        return {"channels": best.to(torch.int16)}

    def head_bytes(self, width: int) -> int:
        return self._kept(width) * torch.int16.itemsize + width * torch.float16.itemsize

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """The kept channels (B, H, S, k)."""
        channels = self._own(states.shape[-1], states)
        return {"codes": half(states.float().masked_fill(~valid[..., None], 0.0).gather(-1, channels))}

    def decode(self, coded: Coded, width: int) -> Tensor:
        codes = coded["codes"].float()
        return codes.new_zeros(*codes.shape[:3], width).scatter(-1, self._own(width, codes), codes)

    def products(self, coded: Coded, query: Tensor) -> Tensor:
        """Dot products (B, H, r, S) float32 of `query` (B, H, r, d), which loses its other channels."""
        return query.gather(-1, self._own(query.shape[-1], query)) @ coded["codes"].float().mT

    def _kept(self, width: int) -> int:
        return width - int(width * self.pruned / 100)

    def _own(self, width: int, states: Tensor) -> Tensor:
        """The channels of each of the slots or queries `states` (B, H, S, ...): (B, H, S, k)."""
        first = torch.arange(self._kept(width), device=states.device).expand(*states.shape[:2], -1)
        channels = first if self.channels is None else self.channels.long()
        return channels[:, :, None].expand(-1, -1, states.shape[2], -1)


MOST = 65_536


@dataclass(frozen=True)
class Store:
    """Codes for keys and values; without them slots stay native.

    A head's first `sinks` and newest `residual` slots stay native; while decoding, at least the newest `gathered` and
    those that arrived since the last packing, `lot` at a time. KIVI keeps the 128 newest tokens and no sinks,
    TurboQuant both; 128 would leave nothing to quantize at the budgets compared here.
    """

    title: str
    keys: Code | None = None
    values: Code | None = None
    sinks: int = 4
    residual: int = 16
    paper: str = ""
    lot: int = 8  # slots packed at a time; a multiple of the code's group
    gathered: int = 0
    centred: bool = False  # keys are encoded minus the mean key of the head's first packed slots, a float16 vector
    unrotated: bool = False  # keys are encoded as they would be at position 0
    queries: int = 0  # last queries of the prompt whose squares a code wants to know

    @property
    def packs(self) -> bool:
        """Whether slots are quantized."""
        return self.keys is not None

    def coded(self, live: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Which of a head's `live` (B, H) slots, in order, are encoded: (places (B, H, room), mask of used ones).

        No head has more than `longest` slots; `room` is a multiple of `lot`.
        """
        room = -(-max(longest - min(self.sinks, longest) - self.residual, 0) // self.lot) * self.lot
        place = min(self.sinks, longest) + torch.arange(room, device=live.device).expand(*live.shape, -1)
        return place.clamp_max(longest - 1), place < live[..., None] - self.residual

    def mean_key(self, keys: Tensor, real: Tensor) -> Tensor | None:
        """Mean (B, H, 1, d) float16 of the `real` (B, H, S) `keys` (B, H, S, d); None for a store that needs none."""
        if not self.centred:
            return None
        total = keys.float().masked_fill(~real[..., None], 0.0).sum(2, keepdim=True)
        return half(total / real.sum(-1).clamp_min(1)[..., None, None])

    def head_bytes(self, key_width: int, value_width: int) -> int:
        """Bytes of a head's mean key, and of what codes learn about it."""
        learned = self.keys.head_bytes(key_width) if isinstance(self.keys, Learning) else 0
        learned += self.values.head_bytes(value_width) if isinstance(self.values, Learning) else 0
        return learned + (torch.float16.itemsize * key_width if self.centred else 0)


KIVI = "https://arxiv.org/abs/2402.02750"
TURBO = "https://arxiv.org/abs/2504.19874"
SHADOW = "https://arxiv.org/abs/2410.21465"
THINK = "https://arxiv.org/abs/2407.21018"
GEAR = "https://arxiv.org/abs/2403.05527"
LLAMA_CPP = "https://github.com/ggml-org/llama.cpp/pull/21038"
QUERY_SQUARES = "query_squares"  # the head state for stores with `queries`
WHOLE = 2**20  # channels: a slot's value has one step and one minimum


def _of_vllm(bits: int | None, value_bits: int) -> Store:
    """vLLM's store of keys at `bits` (None: float8) and values at `value_bits`: all slots but the newest."""
    keys: Code = Plain("fp8") if bits is None else Rotated(bits, keeps="length")
    title = f"vLLM's: {'float8' if bits is None else f'{bits}-bit'} keys, {value_bits}-bit values"
    return Store(title, keys, PerToken(value_bits, WHOLE), 0, 1, TURBO, gathered=16)


def _of_gear(bits: int) -> Store:
    """KIVI at `bits` with its errors in low rank."""
    codes: tuple[Code, ...] = (PerChannel(bits), PerToken(bits))
    keys, values = (Residual(code, group=code.group, shared=code.shared, scales=code.scales) for code in codes)
    return Store(f"GEAR-L: KIVI, {bits} bits, and its errors in rank 4", keys, values, paper=GEAR, lot=GROUP)


STORES: Registry[Store] = Registry(
    "store",
    {
        NATIVE: Store("the model's own dtype"),
        "fp8": Store("float8 e4m3, one scale per slot", Eight("fp8"), Eight("fp8")),
        "int8": Store("8-bit integers, one scale per slot", Eight("int8"), Eight("int8")),
        "kivi4": Store("KIVI, 4 bits", PerChannel(4), PerToken(4), paper=KIVI, lot=GROUP),
        "kivi2": Store("KIVI, 2 bits", PerChannel(2), PerToken(2), paper=KIVI, lot=GROUP),
        "turbo4": Store("TurboQuant, 4 bits", Rotated(4), Rotated(4), paper=TURBO),
        "turbo3": Store("TurboQuant, 3 bits", Rotated(3), Rotated(3), paper=TURBO),
        "lean4": Store(
            "TurboQuant, 4 bits, all of a prompt but two slots", Rotated(4), Rotated(4), 1, 1, TURBO, gathered=16
        ),
        "lean6": Store(
            "TurboQuant, 6 bits, all of a prompt but two slots", Rotated(6), Rotated(6), 1, 1, TURBO, gathered=16
        ),
        **{
            f"centred{bits}": Store(
                f"as lean4, {bits} bits, keys minus their mean",
                Rotated(bits),
                Rotated(bits),
                1,
                1,
                TURBO,
                gathered=16,
                centred=True,
            )
            for bits in (3, 4, 5, 6)
        },
        "turboquant_k8v4": _of_vllm(None, 4),
        "turboquant_4bit_nc": _of_vllm(4, 4),
        "turboquant_k3v4_nc": _of_vllm(3, 4),
        "turboquant_3bit_nc": _of_vllm(3, 3),
        **{  # all slots but the newest
            name: Store(
                f"llama.cpp's {name}: blocks of 32 rotated channels",
                Blocks(name, widest=True),
                Blocks(name),
                0,
                1,
                LLAMA_CPP,
                gathered=16,
            )
            for name in get_args(Format)
        },
        "gear4": _of_gear(4),
        "gear2": _of_gear(2),
        "low_rank": Store(
            "16 coordinates in a basis of the prompt's keys before rotation, and of its values",
            LowRank(16),
            LowRank(16),
            paper=SHADOW,
            gathered=UNLIMITED,
            unrotated=True,
        ),
        "think": Store(
            "ThinK, half of the key channels, chosen by the prompt's last queries",
            KeptChannels(50),
            Plain("fp16"),
            0,
            32,
            THINK,
            gathered=UNLIMITED,
            queries=32,
        ),
        ADAPTIVE: Store("for a budget in bytes centred3 to centred6, int8 from a third of the cache on, else native"),
        AUTO: Store("for a budget in bytes lean4, int8 from a third of the cache on, else native"),
    },
)


# the least and the most of each
SETTINGS = {
    "sinks": (0, MOST),
    "residual": (1, MOST),
    "group": (2, MOST),
    "rank": (1, 64),
    "pruned": (1, 99),
    "rotation": (0, 256),
}
OF_CODES: dict[str, tuple[type[Code], ...]] = {
    "rank": (LowRank, Residual),
    "pruned": (KeptChannels,),
    "rotation": (Blocks,),
}  # settings of codes of these classes


def store_of(name: str) -> Store:
    """Restore a store by name, such as `kivi4`, or with settings, such as `kivi4/group=64/residual=128`.

    Raises UserError for an unknown store or setting.
    """
    base, *settings = name.split("/")
    if base not in STORES:
        raise STORES.unknown(base)
    store = STORES[base]
    found: dict[str, Any] = {}  # fields of the store; a `group` also sets `lot`
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in SETTINGS or not text.isdigit() or not SETTINGS[key][0] <= int(text) <= SETTINGS[key][1]:
            known = ", ".join(
                f"{one} (at least {least})" if most == MOST else f"{one} ({least} to {most})"
                for one, (least, most) in SETTINGS.items()
            )
            raise UserError(f"{setting!r} is not a setting of a store: use {known}, as in kivi4/group=64/residual=128.")
        if key in OF_CODES:
            kind = OF_CODES[key]
            sides = {"keys": store.keys, "values": store.values}
            codes: dict[str, Any] = {side: code for side, code in sides.items() if isinstance(code, kind)}
            if not codes:
                others = " or ".join(name for name, one in STORES.items() if isinstance(one.keys, kind))
                raise UserError(f"{base} has no {key}: remove {setting}, or choose {others}.")
            found |= {side: replace(code, **{key: int(text)}) for side, code in codes.items()}
        elif key != "group":
            found[key] = int(text)
        elif isinstance(store.keys, PerChannel):
            found |= {"keys": replace(store.keys, group=int(text)), "lot": int(text)}
        else:
            raise UserError(f"{base} has no groups of slots: remove {setting}, or choose kivi4 or kivi2.")
    if settings and not store.packs:
        raise UserError(f"{base} does not quantize, so it has no settings: remove {'/'.join(settings)}.")
    return replace(store, **found) if settings else store


def store_under(name: str, budget: Budget) -> Store:
    """Restore a store by name, with `auto` and `adaptive` resolved by the budget (`kvlab.core.budget`)."""
    return store_of(resolve_store(name, budget))


def keys_as_held(
    store: Store,
    keys: Tensor,
    order: Tensor,
    live: Tensor,
    turn: Turn | None = None,
    position: Tensor | None = None,
    query_squares: Tensor | None = None,
) -> Tensor:
    """`keys` (B, H, S, d) float32 after quantizing the first `live` (B, H) slots of `order` (B, H, S).

    `order` is the order of the text. Slots that the store leaves native, and all others, are unchanged. `turn` rotates
    keys by a `position` (B, H, S), for stores that turn them back; `query_squares` (B, H, d) as in the table.
    """
    keys = keys.float()
    code = store.keys
    if code is None:
        return keys
    place, there = store.coded(live, int(live.max()))
    index = order.gather(2, place)[..., None].expand(*place.shape, keys.shape[-1])
    states = keys.gather(2, index)
    at = position.gather(2, order.gather(2, place)) if position is not None else None
    turned = states if at is None or turn is None or not store.unrotated else turn(states, -at)
    mean = store.mean_key(states, there)
    encoded = turned if mean is None else turned - mean
    if isinstance(code, Learning):
        code = replace(code, **code.learn(encoded, there, query_squares))
    error = code.decode(code.encode(encoded, there), keys.shape[-1]) - encoded
    if turned is not states and turn is not None and at is not None:
        error = turn(error, at)
    return keys.scatter_add(2, index, torch.where(there[..., None], error, 0.0))


@lru_cache
def store_bytes(store: Store, key_width: int, value_width: int) -> tuple[int, int]:
    """(bytes of a slot's own codes and scales, bytes shared by a lot of slots)."""
    per_slot = shared = 0
    real = torch.ones(1, 1, store.lot, dtype=torch.bool)
    for code, width in ((store.keys, key_width), (store.values, value_width)):
        assert code is not None
        for name, tensor in code.encode(torch.zeros(1, 1, store.lot, width), real).items():
            if name in code.shared:
                shared += tensor.nbytes
            else:
                per_slot += tensor[0, 0, 0].nbytes
    return per_slot, shared


def bits_of(store: Store, width: int) -> float:
    """Bits per number of a key or value, including what slots share."""
    per_slot, shared = store_bytes(store, width, width)
    return 8 * (per_slot + shared / store.lot) / (2 * width)
