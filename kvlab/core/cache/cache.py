"""A transformers `Cache` with compressed full-attention layers; other layers stay as they are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from kvlab.core.cache.chunked_prefill import check_chunks, check_pass, chunk_sizes
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.layers.decisions import decide_pending, note_statistic
from kvlab.core.cache.layers.layer_state import NO_WAY_BACK, BesideRecurrent
from kvlab.core.cache.layers.second_pass_queries import UNREAD
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.contract.slot_columns import integer_dtype
from kvlab.core.errors import UserError
from kvlab.core.validation import whole_number


class HybridLayer(BesideRecurrent, CompressedLayer, LinearAttentionLayer):  # type: ignore[misc]  # both bases define the states of a layer
    """Compressed slots next to transformers' recurrent state, whose size does not depend on the text."""

    def __init__(
        self, layer_idx: int, settings: LayerSettings, compressed_index: int, number_of_states: int = 1
    ) -> None:
        LinearAttentionLayer.__init__(self, number_of_states)
        CompressedLayer.__init__(self, layer_idx, settings, compressed_index)

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        super()._map_rows(change)
        for states in (self.conv_states, self.recurrent_states):
            states.update({index: change(state) for index, state in states.items() if state is not None})


class OwnWindow(DynamicSlidingWindowLayer):
    """Sliding window that copies its states: transformers keeps a view, which would keep the whole prompt alive."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return all keys and values this pass may see; only the window is kept."""
        states = super().update(key_states, value_states, *args, **kwargs)
        if key_states.shape[-2] > 1 and self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.clone(), self.values.clone()
        return states


@dataclass(frozen=True)
class LayerMemory:
    """Memory of one compressed layer; slots are means over batch rows and KV heads."""

    layer: int
    logical_tokens: int
    physical_slots: int
    live_slots: float
    live_bytes: int
    allocated_bytes: int
    peak_bytes: int  # most at once in the last step
    codes_bytes: int | None = None  # part of allocated: codes of quantized slots; None if slots are not quantized
    scales_bytes: int | None = None  # their scales, minima and norms
    bytes_read: int = 0  # by a decode step, index included, mean over the steps so far; else what is live


@dataclass(frozen=True)
class CacheMemory:
    """Memory of the whole cache: bytes summed over layers, slots averaged over layers."""

    layers: tuple[LayerMemory, ...]
    # of layers that are not compressed: a sliding window, a recurrent state, or keys and values that other layers read
    sliding_bytes: int = 0
    # most bytes of all compressed layers' tables at once in the last step (a prompt is one); unknown once restored
    peak_bytes: int = field(default=0, compare=False)

    # Of the compressed layers:
    live_bytes: int = field(init=False, repr=False, compare=False)  # of valid slots, and the index of sparse attention
    allocated_bytes: int = field(init=False, repr=False, compare=False)
    bytes_read: int = field(init=False, repr=False, compare=False)  # by a decode step, mean over the steps
    live_slots: float = field(init=False, repr=False, compare=False)  # mean valid slots per layer, row and KV head
    logical_tokens: int = field(init=False, repr=False, compare=False)  # tokens seen, padding included

    def __post_init__(self) -> None:
        for name in ("live_bytes", "allocated_bytes", "bytes_read"):
            object.__setattr__(self, name, sum(getattr(layer, name) for layer in self.layers))
        live_slots = sum(layer.live_slots for layer in self.layers) / max(len(self.layers), 1)
        object.__setattr__(self, "live_slots", live_slots)
        tokens = max((layer.logical_tokens for layer in self.layers), default=0)
        object.__setattr__(self, "logical_tokens", tokens)


# Layer types that keep keys and values of the whole text; all others stay transformers' own.
COMPRESSED_TYPES: dict[str, type[CompressedLayer]] = {"full_attention": CompressedLayer, "hybrid": HybridLayer}


class CompressedCache(Cache):
    """A drop-in for `past_key_values`: greedy, sampling, left-padded batches, beam search and multi-turn chats work.

    Assisted decoding raises an error because a compressed cache cannot be rolled back. `crop` can take back the last
    tokens of one that keeps every token.
    """

    def __init__(self, config: Any, settings: LayerSettings) -> None:
        layers: list[Any] = list(DynamicCache(config=config).layers)
        for index, layer in enumerate(layers):
            if type(layer) is DynamicSlidingWindowLayer:
                layers[index] = OwnWindow(layer.sliding_window)
        types = get_layer_types_and_kwargs(config)[0]
        # Layers whose keys and values later layers read (Gemma 3n, Gemma 4) stay uncompressed.
        modes = getattr(config, "kv_sharing_modes", None)
        if modes is not None:
            shared = {index for index, mode in enumerate(modes) if mode == "store"}
        else:
            readers = getattr(config, "num_kv_shared_layers", None) or 0  # all that older transformers say
            kinds = config.layer_types[: config.num_hidden_layers - readers] if readers else []
            shared = {len(kinds) - 1 - kinds[::-1].index(kind) for kind in set(kinds)}
        compressed = [index for index, kind in enumerate(types) if kind in COMPRESSED_TYPES and index not in shared]
        settings.num_layers = len(compressed)
        for compressed_index, index in enumerate(compressed):
            states = getattr(config, "number_of_conv_states", 1)
            options = {"number_of_states": states} if types[index] == "hybrid" else {}
            layers[index] = COMPRESSED_TYPES[types[index]](index, settings, compressed_index, **options)
        if settings.compresses and not compressed:
            raise UserError(nothing_to_compress(config))
        super().__init__(layers=layers)
        self.settings = settings

    def compressed_layers(self) -> list[CompressedLayer]:
        """Layers compressed by kvlab; sliding-window layers are not among them."""
        return [layer for layer in self.layers if isinstance(layer, CompressedLayer)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append states, as in transformers.

        Raises UserError if the end of the prompt is unknown, or if the method needs a second pass but the model does
        not report its prompts.
        """
        layer = self.layers[layer_idx]
        state = self.settings.second_pass
        if isinstance(layer, CompressedLayer):
            check_pass(layer, key_states.shape[2])
        if state is not None and not (state.ids or state.done or state.running):
            raise UserError(UNREAD)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def reset(self) -> None:
        """Forget the text and its announced length."""
        super().reset()
        self.settings.forget()

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens of a cache that keeps every token: `crop(-3)` the last three, as in transformers.

        Raises UserError, before anything changes, for a cache that cannot be rolled back.
        """
        full_windows = (
            isinstance(layer, DynamicSlidingWindowLayer)
            and layer.get_seq_length() >= layer.sliding_window
            and not layer.record_past
            for layer in self.layers
        )
        if tokens_to_remove < 0 and self.get_seq_length() and (not self.is_croppable or any(full_windows)):
            raise UserError(NO_WAY_BACK)
        super().crop(tokens_to_remove)

    def expect(self, tokens: int, chunk: int | None = None) -> list[int]:
        """Announce a first prompt of `tokens` per row (padding included) that arrives in one or several passes.

        Every layer keeps all keys and values until the last pass, then the method decides as for the whole prompt.
        Later passes are further turns. Returns the sizes of passes of `chunk` tokens, in order. Raises UserError if a
        decision was already made, or if the method's result depends on the chunks.
        """
        tokens = whole_number(tokens, "The tokens of the prompt", 1, 2**31 - 1)
        sizes = chunk_sizes(tokens, tokens if chunk is None else chunk)
        first = next(iter(self.compressed_layers()), None)
        if first is not None and first.head_budgets is not None and first.prompt_end != tokens:
            raise UserError(
                f"This cache has already compressed a prompt of {first.prompt_end:,} tokens: call expect before the "
                "first pass, or reset the cache."
            )
        if chunk is not None:
            check_chunks(self.settings.pipeline, tokens, chunk)
        self.settings.prompt_tokens = tokens
        return sizes

    def limit_second_pass(self, tokens: int) -> None:
        """Limit the second pass to the first `tokens` of each row, the context; the rest is the question."""
        if self.settings.second_pass is not None:
            self.settings.second_pass.context = tokens

    def decide_prompt(self) -> None:
        """Decide about a prompt that waits for a second pass, using its own last queries instead.

        For callers that fill layers by hand and have no token ids.
        """
        settings = self.settings
        if settings.second_pass is not None and not settings.second_pass.done:
            settings.second_pass.done = True
            for waiting in (settings.pending or {}).values():
                table = waiting.layer.buckets[0].table
                table.store(dict(settings.pipeline.score_second_pass(table.visible(), waiting.layer_pass)))
                note_statistic(waiting.layer, waiting.layer_pass)
        decide_pending(settings)

    def memory(self) -> CacheMemory:
        """Current memory; reads counts from the device."""
        layers = []
        for layer in self.compressed_layers():
            if not layer.buckets:
                continue
            live = [int(table.live().sum()) for table in layer.tables]
            codes, scales = layer.packed_bytes()
            held = sum(table.live_bytes() for table in layer.tables) + layer.index_bytes()
            read = layer.mean_bytes_read()
            layer_memory = LayerMemory(
                layer=layer.layer_idx,
                logical_tokens=layer.cumulative_length,
                live_slots=sum(live) / (layer.head_index.batch * layer.head_index.heads),
                physical_slots=max(table.capacity for table in layer.tables),
                live_bytes=held,
                bytes_read=held if read is None else sum(read),
                allocated_bytes=layer.table_bytes(),
                peak_bytes=layer.peak_bytes,
                codes_bytes=codes,
                scales_bytes=scales,
            )
            layers.append(layer_memory)
        others = sum(_other_layers_bytes(layer) for layer in self.layers)
        return CacheMemory(tuple(layers), others, self.settings.held.peak // self.settings.texts)

    def full_bytes(self) -> int:
        """Bytes of the compressed layers in a full cache: keys, values and positions of all tokens seen."""
        total = 0
        for layer in self.compressed_layers():
            if layer.buckets:
                token = sum(part.shape[-1] * part.element_size() for part in layer.tables[0].native_states())
                token += integer_dtype(layer.cumulative_length).itemsize
                total += token * layer.head_index.batch * layer.head_index.heads * layer.cumulative_length
        return total

    def memory_by_row(self) -> list[CacheMemory]:
        """Current memory of each row: its own slots, and its share of what rows have in common."""
        by_row: list[list[LayerMemory]] = []
        for layer in self.compressed_layers():
            live = []
            held = []
            allocated = []
            for bucket in layer.buckets:  # tables and what belongs to them are shared out by heads
                live_slots = bucket.table.live()
                saved = bucket.table.saved_bytes()
                heads = live_slots.numel()
                index = sum(part.nbytes for part in (bucket.index or {}).values())
                shared = (bucket.table.head_bytes() + index) / heads
                live.append(live_slots)
                own_bytes = live_slots * bucket.table.slot_bytes() - (0 if saved is None else saved)
                held.append(own_bytes.double() + shared)
                allocated.append(torch.full_like(held[-1], (bucket.table.table_bytes() + index) / heads))
            slots = layer.head_index.join(live).double().mean(-1).tolist()
            bytes_held, bytes_allocated = (
                layer.head_index.join(part).sum(-1).round().long().tolist() for part in (held, allocated)
            )
            read = layer.mean_bytes_read()
            by_row = by_row or [[] for _ in slots]
            for row, memories in enumerate(by_row):
                memory = LayerMemory(
                    layer=layer.layer_idx,
                    logical_tokens=layer.cumulative_length,
                    live_slots=slots[row],
                    physical_slots=max(table.capacity for table in layer.tables),
                    live_bytes=bytes_held[row],
                    bytes_read=bytes_held[row] if read is None else read[row],
                    allocated_bytes=bytes_allocated[row],
                    peak_bytes=layer.peak_bytes // len(slots),
                )
                memories.append(memory)
        others = sum(_other_layers_bytes(layer) for layer in self.layers) // len(by_row)
        peak = self.settings.held.peak // self.settings.texts
        return [CacheMemory(tuple(layers), others, peak) for layers in by_row]


def nothing_to_compress(config: Any) -> str:
    """Error message for a model whose cache never grows beyond its window."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds and not kinds & {"sliding_attention", "chunked_attention", "hybrid_sliding"}:
        return "No layer of this model keeps keys and values of the whole text, so there is nothing to compress."
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    reach = f"a sliding window of {window:,} tokens" if isinstance(window, int) else "a sliding window"
    return f"Every layer of this model uses {reach}, so its cache stays small and there is nothing to compress."


def _other_layers_bytes(layer: Any) -> int:
    """Bytes of transformers' own layers: keys and values of a window, or a recurrent state."""
    window = () if isinstance(layer, CompressedLayer) else (getattr(layer, "keys", 0), getattr(layer, "values", 0))
    states = (state for name in ("conv_states", "recurrent_states") for state in getattr(layer, name, {}).values())
    return sum(state.nbytes for state in (*window, *states) if isinstance(state, Tensor))
