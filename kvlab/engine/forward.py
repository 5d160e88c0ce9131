"""The forward passes of a run (prefill, and decode steps), and the choice of the next token."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, StopStringCriteria
from transformers.cache_utils import Cache
from transformers.utils import logging

from kvlab.common.limits import under_way
from kvlab.core.attention.layer_handoff import decoder_layers
from kvlab.core.cache import CompressedCache
from kvlab.core.cache.chunked_prefill import chunk_sizes
from kvlab.core.cache.fan_out_cache import FanOutCache
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.errors import is_out_of_memory
from kvlab.models.load import LoadedModel
from kvlab.requests.generation_settings import GenerationSettings, processors_set, stop_strings


@torch.inference_mode()
def read_on(
    model: PreTrainedModel,
    device: torch.device,
    caches: Sequence[CompressedCache],
    tokens_read: Sequence[int],
    ids: Sequence[list[int]],
) -> list[Tensor | Exception]:
    """For each cache the logits (V,) in float32 after its tokens, or the error that ended it.

    Every cache has one row and has read `tokens_read` tokens; `ids` are equally many tokens for each.
    """
    found: list[Tensor | Exception] = []
    # All run in one batch if every layer is compressed, as other layers hold states of equal length.
    numbers = list(range(len(caches)))
    alike = all(isinstance(layer, CompressedLayer) for cache in caches[:1] for layer in cache.layers)
    for group in [numbers] if alike and numbers else [[number] for number in numbers]:
        given = torch.tensor([ids[number] for number in group], device=device)
        starts = torch.tensor([tokens_read[number] for number in group], device=device)[:, None]
        positions = starts + torch.arange(given.shape[1], device=device)
        # A fan-out cache of caches that were filled apart works on copies of their layers without slots, which is no
        # use where there are such layers: those caches run alone.
        fan_out = FanOutCache.of_filled([caches[number] for number in group], device) if len(group) > 1 else None
        branches = list(fan_out.branches) if fan_out is not None else []
        cache = caches[group[0]] if fan_out is None else fan_out
        options = {"past_key_values": cache, "position_ids": positions, "use_cache": True}
        try:
            logits = model(given, **options, logits_to_keep=1).logits[:, -1].float()
        except Exception as error:
            if is_out_of_memory(error) or any(branch.error is None for branch in branches):
                raise
            found += [branch.error or error for branch in branches] or [error]
            continue
        errors = [branch.error for branch in branches] or [None]
        found += [error if error is not None else row for error, row in zip(errors, logits, strict=True)]
    return found


@torch.inference_mode()
def prefill(
    loaded: LoadedModel, cache: Cache, ids: Tensor, chunk: int | None = None, check: Callable[[], None] | None = None
) -> Tensor:
    """Run the prompt (1, T) through the model and `cache`, at once or in chunks of `chunk` tokens: next logits (V,).

    `check` is called before every layer and may raise to stop a long prompt. Chunks give the same result with less
    memory for activations; `kvlab.core.cache.chunked_prefill` explains what they do not save. Raises UserError for a
    method whose result would differ.
    """
    tokens = ids.shape[1]
    if isinstance(cache, CompressedCache | FanOutCache):
        sizes = cache.expect(tokens, chunk)
    else:
        sizes = chunk_sizes(tokens, chunk or tokens)
    for part in ids.split(sizes, dim=1):
        with before_every_layer(loaded.model, check):
            output = loaded.model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits: Tensor = output.logits[0, -1]
    return logits.float()


@contextmanager
def before_every_layer(model: PreTrainedModel, check: Callable[[], None] | None) -> Iterator[None]:
    """Call `check` before every decoder layer; it may raise to stop a pass, and finds that one is under way."""
    if check is None:
        yield
        return

    check_within_pass = under_way()(lambda *_: check())
    hooks = [layer.register_forward_pre_hook(check_within_pass) for layer in decoder_layers(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def decode_one(loaded: LoadedModel, cache: Cache, token: Tensor) -> Tensor:
    """Log-probabilities (V,) after one more token (scalar tensor)."""
    logits = loaded.model(token.view(1, 1), past_key_values=cache, use_cache=True).logits[0, -1].float()
    return torch.log_softmax(logits, -1)


def end_ids(loaded: LoadedModel) -> set[int]:
    """Token ids that end a text, from the generation config and the tokenizer."""
    config = loaded.model.generation_config
    ends = None if config is None else config.eos_token_id
    named = ends if isinstance(ends, list) else [ends]
    return {int(end) for end in (*named, loaded.tokenizer.eos_token_id) if end is not None}


Ended = Callable[[Sequence[int]], bool]  # whether the last of a text's generated tokens ends it


def end_check(loaded: LoadedModel, ids: Tensor, generation_config: GenerationSettings) -> Ended:
    """A function that says whether generated tokens end the text after the prompt (1, T): by a token that ends texts,
    or where the generation config is honoured by one of its stop strings, as in `generate`."""
    ends = end_ids(loaded)
    settings = loaded.model.generation_config
    stops = stop_strings(settings.to_dict()) if generation_config == "honour" and settings is not None else []
    if not stops:
        return lambda written: written[-1] in ends
    criteria = StopStringCriteria(loaded.tokenizer, stops)
    before: list[int] = ids[0, -criteria.maximum_token_len :].tolist()

    def has_ended(written: Sequence[int]) -> bool:
        tail: Any = torch.tensor([[*before, *written][-criteria.maximum_token_len :]])
        return written[-1] in ends or bool(criteria(tail, tail)[0])

    return has_ended


Choose = Callable[[Tensor], Tensor]  # logits (V,) to a token (scalar tensor)


def chooser(loaded: LoadedModel, ids: Tensor, max_new_tokens: int, generation_config: GenerationSettings) -> Choose:
    """A function that chooses the tokens after the prompt (1, T). Use it for one text: processors may keep state.

    They are the logits processors that greedy `generate` would use after this prompt, taken from `generate` itself.
    """
    config = loaded.model.generation_config
    if generation_config == "ignore" or config is None or not processors_set(config.to_dict()):
        return torch.argmax
    generate: Any = loaded.model.generate
    without_stops = copy(config)
    without_stops.stop_strings = None  # they need a tokenizer, which `generate` loses beside `custom_generate`
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns about sampling settings, which greedy decoding ignores
    try:
        loaded.model.generation_config = without_stops
        processors = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(end_ids(loaded)) or None,
            custom_generate=lambda *_, logits_processor, **__: logits_processor,
        )
    finally:
        loaded.model.generation_config = config
        logging.set_verbosity(before)
    return ProcessedArgmax(processors, ids)


@dataclass(eq=False)
class ProcessedArgmax:
    """Argmax after applying logits processors to each step's logits, as `generate` does."""

    processors: LogitsProcessorList
    ids: Any  # transformers annotates LongTensor, which no tensor has as its type

    def __call__(self, logits: Tensor) -> Tensor:
        scores: Any = logits[None].clone()
        token = self.processors(self.ids, scores).argmax(-1)
        self.ids = torch.cat([self.ids, token[None]], dim=-1)
        return token[0]
