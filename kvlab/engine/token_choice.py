"""Which token comes next: the most likely one, or the one transformers' own logits processors leave on top."""

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


def chooser(loaded: LoadedModel, ids: Tensor, max_new_tokens: int, treated: GenerationSettings) -> Choose:
    """How the tokens after the prompt (1, T) are chosen, for one text: processors may remember what they saw."""
    settings = loaded.model.generation_config
    if treated == "ignore" or settings is None or not processors_set(settings.to_dict()):
        return torch.argmax
    return Processed(processors_of(loaded, ids, max_new_tokens), ids)


class Processed:
    """Applies processors to each step's logits, given all tokens so far, as `generate` does."""

    def __init__(self, processors: LogitsProcessorList, ids: Tensor) -> None:
        self.processors = processors
        self.ids: Any = ids  # transformers asks for a LongTensor, which is no type that tensors have

    def __call__(self, logits: Tensor) -> Tensor:
        scores: Any = logits[None].clone()
        token = self.processors(self.ids, scores).argmax(-1)
        self.ids = torch.cat([self.ids, token[None]], dim=-1)
        return token[0]


def processors_of(loaded: LoadedModel, ids: Tensor, max_new_tokens: int) -> LogitsProcessorList:
    """The processors that greedy `generate` would use after this prompt: it builds them, and hands them over."""

    def hand_over(*_: object, logits_processor: LogitsProcessorList, **__: object) -> LogitsProcessorList:
        return logits_processor

    generate: Any = loaded.model.generate
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns of sampling settings, which greedy decoding leaves alone
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
