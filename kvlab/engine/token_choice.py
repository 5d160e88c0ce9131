"""Choose the next token: argmax, optionally after the checkpoint's logits processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.utils import logging

from kvlab.engine.forward import end_ids
from kvlab.models.load import LoadedModel
from kvlab.requests.generation_settings import GenerationSettings, processors_set

Choose = Callable[[Tensor], Tensor]  # logits (V,) to a token (scalar tensor)


def chooser(loaded: LoadedModel, ids: Tensor, max_new_tokens: int, generation_config: GenerationSettings) -> Choose:
    """A function that chooses the tokens after the prompt (1, T). Use it for one text: processors may keep state."""
    settings = loaded.model.generation_config
    if generation_config == "ignore" or settings is None or not processors_set(settings.to_dict()):
        return torch.argmax
    return ProcessedArgmax(processors_of(loaded, ids, max_new_tokens), ids)


class ProcessedArgmax:
    """Argmax after applying logits processors to each step's logits, as `generate` does."""

    def __init__(self, processors: LogitsProcessorList, ids: Tensor) -> None:
        self.processors = processors
        self.ids: Any = ids  # transformers annotates LongTensor, which no tensor has as its type

    def __call__(self, logits: Tensor) -> Tensor:
        scores: Any = logits[None].clone()
        token = self.processors(self.ids, scores).argmax(-1)
        self.ids = torch.cat([self.ids, token[None]], dim=-1)
        return token[0]


def processors_of(loaded: LoadedModel, ids: Tensor, max_new_tokens: int) -> LogitsProcessorList:
    """The logits processors that greedy `generate` would use after this prompt, taken from `generate` itself."""

    def hand_over(*_: object, logits_processor: LogitsProcessorList, **__: object) -> LogitsProcessorList:
        return logits_processor

    generate: Any = loaded.model.generate
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns about sampling settings, which greedy decoding ignores
    try:
        return generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(end_ids(loaded)) or None,
            custom_generate=hand_over,
        )
    finally:
        logging.set_verbosity(before)
