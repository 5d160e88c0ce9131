"""Caches of a benchmark: filled as after a long prompt, without running one, and counted in bytes.

Every compressed layer gets random keys and values of all tokens by `update` and attends with a few random queries by
`attend`, so its method scores, decides and evicts or merges as after a real prompt. Keys of a head share a direction,
as real ones do (cosine of two about 0.86); otherwise merging methods would find nothing similar. Scorers that sum over
the prompt see `QUERY_ROWS` queries, which changes which slots are kept, but neither their number nor the cost.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from kvlab.bench.models import BenchModel
from kvlab.core.attention.layer_handoff import AttentionCall, take_hidden_states, take_offered_layer
from kvlab.core.cache.cache import CompressedCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.cache.settings import LayerSettings

QUERY_ROWS = 64
SHARED = 2.5  # norm of the keys' shared direction, in their standard deviations


def fill(
    model: BenchModel, cache: Cache, batch: int, prompt: int, generated: int = 0, seed: int = 0, shared: float = SHARED
) -> None:
    """Put `prompt` tokens, then `generated` ones, into every layer of an empty cache.

    Equal seeds give equal states. A method with a second pass decides without it, as there is no text.
    """
    states, queries = (torch.Generator(model.device).manual_seed(2 * seed + number) for number in (0, 1))
    for tokens in (prompt, generated):
        for index, layer in enumerate(cache.layers) if tokens else ():
            place = model.device_of(index)
            size = (batch, model.shape.num_key_value_heads, tokens, model.shape.head_dim)
            keys = normal(model, states, *size)
            direction = normal(model, states, size[1], 1, size[3])
            keys = keys.add_(direction, alpha=shared).to(place)
            values = normal(model, states, *size).to(place)
            if isinstance(layer, CompressedLayer):
                _through_attention(model, layer, model.attention_modules[index], keys, values, queries)
            else:
                layer.update(keys, values)  # type: ignore[union-attr]  # a list of transformers' layers
        if isinstance(cache, CompressedCache):
            cache.decide_prompt()


def random_token(model: BenchModel, batch: int, tokens: int = 1, seed: int = 0) -> Tensor:
    """Random token ids (batch, tokens) from a seed."""
    source = torch.Generator(model.device).manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (batch, tokens), generator=source, device=model.device)


def normal(model: BenchModel, source: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in the model's dtype, on its device."""
    return torch.randn(*shape, generator=source, device=model.device, dtype=model.dtype)


def attend_by_hand(layer: CompressedLayer, module: nn.Module, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One pass through a layer as its attention module would run it: (B, Hq, q, d)."""
    seen_keys, seen_values = layer.update(keys, values)
    attending = take_offered_layer(seen_keys)
    assert attending is not None
    scaling = getattr(module, "scaling", None) or getattr(module, "inv_norm_factor", None) or query.shape[-1] ** -0.5
    softcap = getattr(module, "attn_logit_softcapping", None)
    slopes_on = getattr(module, "slopes_on", None)  # of a model with ALiBi
    slopes = None if slopes_on is None else slopes_on(query.device)
    hidden = take_hidden_states(module)
    call = AttentionCall(scaling, softcap, module=module, slopes=slopes, hidden_states=hidden)
    return attending.attend(query, seen_keys, seen_values, call)


def _through_attention(
    model: BenchModel, layer: CompressedLayer, module: nn.Module, keys: Tensor, values: Tensor, source: torch.Generator
) -> None:
    batch, _, tokens, head_dim = keys.shape
    query = normal(model, source, batch, model.shape.num_attention_heads, min(tokens, QUERY_ROWS), head_dim)
    work = partial(attend_by_hand, layer, module, query.to(keys.device), keys, values)
    if layer.settings.pipeline.score.needs_hidden_states:
        states = normal(model, source, batch, tokens, model.config.hidden_size)
        # Call the module with `work` as its forward, so that hooks see its inputs.
        module.forward = lambda *given, **named: work()
        try:
            module(hidden_states=states.to(keys.device))
        finally:
            del module.forward
    else:
        work()


# A layer's state per row and head besides its slots: budgets, tokens seen, votes lost.
PER_HEAD_BYTES = 64
PER_LAYER_BYTES = 1024


def tensor_bytes(thing: object) -> int:
    """Bytes of all tensor storages reachable from a cache or layer, without shared settings."""
    taken: dict[int, int] = {}  # by address
    waiting = [thing]
    met = set[int]()
    while waiting:
        item = waiting.pop()
        if id(item) in met or isinstance(item, LayerSettings | torch.Generator | type):
            continue
        met.add(id(item))
        if isinstance(item, Tensor):
            taken[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif isinstance(item, Cache | CompressedLayer) or type(item).__module__.startswith(
            ("kvlab.", "transformers.cache")
        ):
            waiting.extend(vars(item).values())
    return sum(taken.values())


def check_allocated_bytes(cache: CompressedCache) -> None:
    """Raise AssertionError if a layer's reported allocated bytes differ from its tensors'."""
    layers = {layer.layer_idx: layer for layer in cache.compressed_layers()}
    for memory in cache.memory().layers:
        layer = layers[memory.layer]
        extra = PER_LAYER_BYTES + PER_HEAD_BYTES * layer.head_index.batch * layer.head_index.heads
        held = tensor_bytes(layer)
        if not memory.allocated_bytes <= held <= memory.allocated_bytes + extra:
            raise AssertionError(
                f"layer {memory.layer} reports {memory.allocated_bytes:,} allocated bytes, its tensors take {held:,}"
            )


def live_bytes(cache: Cache, context: int) -> int:
    """Bytes that a decode step reads: of valid slots with metadata, or all tokens of a plain cache.

    Under sparse attention of those it chose, and of its index.
    """
    if isinstance(cache, CompressedCache):
        memory = cache.memory()
        return memory.bytes_read + memory.sliding_bytes
    states = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    return sum(
        s[:, :, :1].numel() * s.element_size() * min(context, s.shape[2]) for s in states if isinstance(s, Tensor)
    )
