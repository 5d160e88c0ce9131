"""The transformers `Cache`: compressed full-attention layers, and a model's own layers where it slides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, get_layer_types_and_kwargs

from kvlab.cache.chunked_prefill import check_chunks, check_pass, chunk_sizes
from kvlab.cache.layers.compressed_layer import CompressedLayer
from kvlab.cache.layers.decisions import conclude_all
from kvlab.cache.layers.hybrid_layer import HybridLayer, with_own_window
from kvlab.cache.layers.second_pass_queries import UNREAD, take_last_queries
from kvlab.cache.settings import LayerSettings
from kvlab.common.errors import UserError
from kvlab.common.validation import whole_number


@dataclass(frozen=True)
class LayerMemory:
    """What one compressed layer holds, in bytes and slots; slots are means over batch rows and KV heads."""

    layer: int
    logical_tokens: int
    physical_slots: int
    live_slots: float
    live_bytes: int
    allocated_bytes: int
    peak_bytes: int
    codes_bytes: int | None = None  # of allocated: codes of packed slots; None where slots are native
    scales_bytes: int | None = None  # and their scales, least values and norms


@dataclass(frozen=True)
class CacheMemory:
    """The whole cache: sums over layers of bytes, means over layers of slots."""

    layers: tuple[LayerMemory, ...]
    sliding_bytes: int = 0  # of layers that keep a window or a state of their own

    @property
    def live_bytes(self) -> int:
        """Valid slots with their metadata."""
        return sum(layer.live_bytes for layer in self.layers)

    @property
    def allocated_bytes(self) -> int:
        """What the compressed layers' tensors take."""
        return sum(layer.allocated_bytes for layer in self.layers)

    @property
    def live_slots(self) -> float:
        """Mean valid slots per layer, row and KV head."""
        return sum(layer.live_slots for layer in self.layers) / max(len(self.layers), 1)

    @property
    def logical_tokens(self) -> int:
        """Tokens seen, padding counted."""
        return max((layer.logical_tokens for layer in self.layers), default=0)


# What has keys and values of the whole text; all other layers are transformers' own.
MADE_BY: dict[str, type[CompressedLayer]] = {"full_attention": CompressedLayer, "hybrid": HybridLayer}


class CompressedCache(Cache):
    """A drop-in for `past_key_values`: greedy, sampling, left-padded batches, beam search and second turns work.

    Assisted decoding does not: a compressed cache cannot be rolled back, and says so.
    """

    def __init__(self, config: Any, settings: LayerSettings) -> None:
        types, options = get_layer_types_and_kwargs(config)
        plain: list[Any] = [with_own_window(layer) for layer in DynamicCache(config=config).layers]
        # What later layers read as well (Gemma 3n, Gemma 4) stays as it is: they know no slots.
        sharing = getattr(config, "kv_sharing_modes", None) or [None] * len(types)
        both = enumerate(zip(types, sharing, strict=True))
        compressed = [index for index, (kind, mode) in both if kind in MADE_BY and mode != "store"]
        settings.num_layers = len(compressed)
        layers = plain
        for rank, index in enumerate(compressed):
            layers[index] = MADE_BY[types[index]](index, settings, rank, **options[index])
        if settings.compresses and not compressed:
            raise UserError(nothing_to_compress(config))
        super().__init__(layers=layers)
        self.settings = settings

    def compressed_layers(self) -> list[CompressedLayer]:
        """The layers kvlab compresses; sliding layers keep their own window and are left alone."""
        return [layer for layer in self.layers if isinstance(layer, CompressedLayer)]

    @property
    def has_compressed(self) -> bool:
        """Whether any layer is kvlab's."""
        return any(isinstance(layer, CompressedLayer) for layer in self.layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As transformers' cache.

        Raises UserError where it is not known what belongs to the prompt, or where the prompt would wait for a
        rehearsal that nobody makes. Whoever fills layers by hand knows both.
        """
        layer, state = self.layers[layer_idx], self.settings.rehearsal
        if isinstance(layer, CompressedLayer):
            check_pass(layer, key_states.shape[2])
        if state is not None and not (state.ids or state.done or state.running):
            raise UserError(UNREAD)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def reset(self) -> None:
        """Forget the text, and what was announced about it: the next one finds a fresh cache."""
        super().reset()
        self.settings.forget()

    def expect(self, tokens: int, chunk: int | None = None) -> list[int]:
        """Announce a first prompt of `tokens` per row, padding counted, that comes in one or several passes.

        Every layer keeps all keys and values until the last pass; then the method decides as for the whole prompt. What
        follows is a further turn. Returns the sizes of passes of `chunk` tokens, in order.
        Raises UserError where the prompt was decided about before it ended, and for a method whose result would not be
        that of one pass.
        """
        tokens = whole_number(tokens, "The tokens of the prompt", 1, 2**31 - 1)
        sizes = chunk_sizes(tokens, tokens if chunk is None else chunk)
        first = next(iter(self.compressed_layers()), None)
        if first is not None and first.quota is not None and first.prompt_end != tokens:
            raise UserError(
                f"This cache has decided about a prompt of {first.prompt_end:,} tokens: call expect before the first "
                "pass, or reset the cache."
            )
        if chunk is not None:
            check_chunks(self.settings.pipeline, tokens, chunk)
        self.settings.prompt_tokens = tokens
        return sizes

    def rehearse_only(self, tokens: int) -> None:
        """Announce that only the first `tokens` of each row of the prompt are its context: the rest is a question.

        A method without a rehearsal does not care.
        """
        if self.settings.rehearsal is not None:
            self.settings.rehearsal.context = tokens

    def settle(self) -> None:
        """Decide about a prompt that waits for its rehearsal, for whoever fills layers by hand and has no text.

        The prompt's own last queries are taken for the rehearsal's.
        """
        settings = self.settings
        if settings.rehearsal is not None and not settings.rehearsal.done:
            settings.rehearsal.done = True
            take_last_queries(settings)
        conclude_all(self.settings)

    def memory(self) -> CacheMemory:
        """What the cache takes now; reads counts from the device."""
        layers = tuple(_layer_memory(layer) for layer in self.compressed_layers() if layer.buckets)
        return CacheMemory(layers, sum(_others_bytes(layer) for layer in self.layers))


def nothing_to_compress(config: Any) -> str:
    """The sentence for a model whose cache never grows beyond its window."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds and not kinds & {"sliding_attention", "chunked_attention", "hybrid_sliding"}:
        return "No layer of this model keeps keys and values of the whole text: there is nothing to compress."
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    reach = f"a window of {window:,} tokens" if isinstance(window, int) else "a window of its own"
    return f"Every layer of this model slides over {reach}, so its cache stays small: there is nothing to compress."


def _others_bytes(layer: Any) -> int:
    """What transformers' own layers hold: a window's keys and values, or a recurrent state."""
    own = () if isinstance(layer, CompressedLayer) else (getattr(layer, "keys", 0), getattr(layer, "values", 0))
    states = (state for name in ("conv_states", "recurrent_states") for state in getattr(layer, name, {}).values())
    return sum(state.nbytes for state in (*own, *states) if isinstance(state, Tensor))


def _layer_memory(layer: CompressedLayer) -> LayerMemory:
    live = [int(table.live().sum()) for table in layer.tables]
    heads, (codes, scales) = layer.streams.batch * layer.streams.heads, layer.packed_bytes()
    return LayerMemory(
        layer=layer.layer_idx,
        logical_tokens=layer.cumulative_length,
        physical_slots=max(table.capacity for table in layer.tables),
        live_slots=sum(live) / heads,
        live_bytes=sum(table.live_bytes() for table in layer.tables),
        allocated_bytes=layer.table_bytes(),
        peak_bytes=layer.peak_bytes,
        codes_bytes=codes,
        scales_bytes=scales,
    )
