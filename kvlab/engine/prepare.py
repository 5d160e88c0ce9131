"""Check the request of a comparison and build, once, what all its runs share: model, token ids, methods."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from kvlab.core import Budget, MethodChoice, UserError
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.cache import nothing_to_compress
from kvlab.core.cache.chunked_prefill import check_chunks
from kvlab.core.cache.fan_out_cache import shares_passes
from kvlab.core.cache.settings import LayerSettings
from kvlab.core.methods import Method, make_method
from kvlab.core.methods.wrappers.choice import check_tokens, sparse_attention_with_changes, with_changes
from kvlab.engine.environment import model_shape
from kvlab.engine.out_of_memory import memory_guard
from kvlab.engine.prompt import encode_prompt
from kvlab.models.chat import Chat, chat_of
from kvlab.models.downloads import Report
from kvlab.models.load import LoadedModel, held_model, pick_device
from kvlab.requests.compare import CompareRequest
from kvlab.trace.schema import ModelShape


@dataclass(frozen=True)
class PreparedRun:
    """One choice of a comparison: its method, the settings of its layers, and a function that builds its cache.

    `new_cache` takes the options of `make_cache`. `shares_passes`: the run can share passes of the model with others.
    """

    choice: MethodChoice
    method: Method
    settings: LayerSettings
    new_cache: Callable[..., CompressedCache]
    shares_passes: bool


@dataclass(frozen=True)
class Prepared:
    """A checked request with its loaded model, the prompt's token ids (1, T), and its runs in order."""

    request: CompareRequest
    loaded: LoadedModel
    chat: Chat | None
    ids: Tensor
    shape: ModelShape
    compressed_layers: tuple[int, ...]
    other_layers: tuple[int, ...]  # layers of the cache with a window or state of their own
    runs: tuple[PreparedRun, ...]


def prepare(request: CompareRequest, root: Path, loaded: LoadedModel | None, downloading: Report | None) -> Prepared:
    """Load the model unless it is given, encode the prompt, and build every method; nothing runs or is written.

    Raises UserError for anything that a method or the model rejects, methods and budgets before the model is loaded.
    """
    methods = [make_method(choice.method, **choice.hyper_parameters) for choice in request.runs]
    for choice in request.runs:
        Budget(choice.budget)
    if loaded is None:
        with memory_guard(pick_device(request.device), "loading the model"):
            loaded = held_model(request, downloading)
    chat = chat_of(request, loaded.tokenizer)
    ids = encode_prompt(loaded, request.prompt, request.max_new_tokens, chat)
    runs: list[PreparedRun] = []
    compressed: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    for choice, method in zip(request.runs, methods, strict=True):
        new_cache = partial(_new_cache, request, choice, method, loaded)
        cache = new_cache()
        compressed = tuple(layer.layer_idx for layer in cache.compressed_layers())
        others = tuple(layer for layer in range(len(cache.layers)) if layer not in compressed)
        if not compressed:
            raise UserError(nothing_to_compress(loaded.model.config.get_text_config(decoder=True)))
        runs.append(PreparedRun(choice, method, cache.settings, new_cache, shares_passes(cache)))
    shape = model_shape(loaded)
    for choice in request.runs:
        check_tokens(choice, ids.shape[1])
    request.record.check(shape.num_hidden_layers, shape.num_key_value_heads)
    if request.prefill_chunk is not None:
        for run in runs:
            check_chunks(run.method.pipeline(), ids.shape[1], request.prefill_chunk)
    return Prepared(request, loaded, chat, ids, shape, compressed, others, tuple(runs))


def _new_cache(
    request: CompareRequest, choice: MethodChoice, method: Method, loaded: LoadedModel, **options: Any
) -> CompressedCache:
    """A fresh cache of the choice, with its pinned and restored tokens."""
    options |= {"compress_every": request.compress_every, "seed": request.seed}
    cache = make_cache(loaded, method, choice.budget, **options)
    layers = [layer.layer_idx for layer in cache.compressed_layers()]
    cache.settings.pipeline = with_changes(cache.settings.pipeline, choice, layers, request.max_new_tokens)
    cache.settings.sparse_attention = sparse_attention_with_changes(cache.settings.sparse_attention, choice)
    return cache
