"""The transformers `Cache`: compressed full-attention layers, and a model's own layers where it slides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, get_layer_types_and_kwargs

from kvlab.attention import ATTENTION_NAME
from kvlab.attention.hidden import watch_hidden_states
from kvlab.attention.queries import num_key_value_heads
from kvlab.budget import UNLIMITED, Budget
from kvlab.cache.chunks import check_chunks, chunk_sizes
from kvlab.cache.deciding import conclude_all
from kvlab.cache.feature_weights import with_feature_maps
from kvlab.cache.find_rotary import changing_rotary, find_rotary, unrotated_layers
from kvlab.cache.hybrid import HybridLayer
from kvlab.cache.layer import CompressedLayer
from kvlab.cache.passage import Passage, narrow_prefill
from kvlab.cache.profiles import with_profile
from kvlab.cache.rehearsing import listen, rehearsal_state, take_last_queries
from kvlab.cache.settings import LayerSettings, Observer
from kvlab.cache.sliding import with_own_window
from kvlab.errors import UserError
from kvlab.given import shown, whole_number
from kvlab.methods import Method, make_method
from kvlab.requests import MOST_NEW_TOKENS
from kvlab.stores import store_under


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

    def expect(self, tokens: int, chunk: int) -> list[int]:
        """Announce a first prompt of `tokens` per row, padding counted, that comes in chunks; their sizes, in order.

        Every layer keeps all keys and values until the last chunk; then the method decides as for the whole prompt.
        Raises UserError for a method whose result would not be the same.
        """
        sizes = chunk_sizes(tokens, chunk)
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


def make_cache(
    model: Any,
    method: str | Method,
    budget: float | int | str = 0.2,
    *,
    compress_every: int = 1,
    seed: int = 0,
    observer: Observer | None = None,
    timed: bool = False,
    **hyper_parameters: Any,
) -> CompressedCache:
    """A fresh cache for one batch of sequences, to be passed as `past_key_values`.

    `model` comes from `kvlab.load_model` (or is a transformers model that runs kvlab's attention). `budget`: a float in
    (0, 1] is a fraction of the first prompt, an int is slots per KV head; 1.0 keeps everything; a text such as `10%B`
    or `64MiB` is bytes. `compress_every` is the
    number of decode steps between decisions, with the slack taken from inside the budget. Raises UserError for a bad
    budget, method or hyper-parameter, or a model that does not run kvlab's attention.
    """
    if not isinstance(method, Method):
        method = make_method(method, **hyper_parameters)
    elif hyper_parameters:
        raise UserError("Give hyper-parameters with a method's name, or a finished method, not both.")
    if not hasattr(model, "config") and not hasattr(model, "tokenizer"):
        raise UserError(f"A cache cannot be made for {shown(model)}: give what kvlab.load_model(name) returns.")
    language_model: PreTrainedModel = getattr(model, "model", model) if hasattr(model, "tokenizer") else model
    config = language_model.config.get_text_config(decoder=True)
    if config._attn_implementation != ATTENTION_NAME:
        raise UserError("This model does not run kvlab's attention; load it with kvlab.load_model(name).")
    whole_number(compress_every, "compress_every", 1, MOST_NEW_TOKENS)
    whole_number(seed, "The seed", 0, 2**63 - 1)
    amount = Budget.parse(budget) if isinstance(budget, str) else Budget(budget)
    pipeline = with_feature_maps(method.pipeline(), language_model, getattr(model, "name", ""))
    pipeline = with_profile(pipeline, language_model, getattr(model, "name", ""))
    if pipeline.score.needs_hidden_states:
        watch_hidden_states(language_model)
    if pipeline.saves_prefill:
        narrow_prefill(language_model)
    settings = LayerSettings(
        pipeline=pipeline,
        budget=amount if method.needs_budget else Budget(UNLIMITED),
        compresses=method.family != "reference" and not (method.needs_budget and amount.keeps_all),
        num_layers=config.num_hidden_layers,
        group=config.num_attention_heads // num_key_value_heads(config),
        compress_every=compress_every,
        seed=seed,
        observer=observer,
        timed=timed,
        rotary=find_rotary(language_model),
        unrotated=unrotated_layers(language_model),
        passage=Passage() if pipeline.saves_prefill else None,
        changing_rotary=changing_rotary(language_model),
        store=store_under(method.store, amount),
    )
    if pipeline.rehearsal is not None and settings.compresses:
        listen(language_model)
        settings.rehearsal = rehearsal_state(pipeline.rehearsal, language_model, getattr(model, "tokenizer", None))
    return CompressedCache(config, settings)


def _others_bytes(layer: Any) -> int:
    """What transformers' own layers hold: a window's keys and values, or a recurrent state."""
    own = () if isinstance(layer, CompressedLayer) else (getattr(layer, "keys", 0), getattr(layer, "values", 0))
    states = (state for name in ("conv_states", "recurrent_states") for state in getattr(layer, name, {}).values())
    return sum(state.nbytes for state in (*own, *states) if isinstance(state, Tensor))


def _layer_memory(layer: CompressedLayer) -> LayerMemory:
    live = [int(table.slots.valid.sum()) for table in layer.tables]
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
