"""The full cache's own continuation, which every method is then made to decode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.cache import make_cache
from kvlab.engine.forward import Prefilled, greedy, prefill
from kvlab.engine.progress import Watch
from kvlab.engine.token_choice import chooser
from kvlab.models.load import LoadedModel
from kvlab.requests.generation_settings import GenerationSettings


@dataclass(frozen=True)
class Reference:
    """The forced continuation: token ids, and the log-probabilities (V,) each was chosen from (on the host)."""

    ids: list[int]
    logprobs: list[Tensor]
    prompt_logprobs: Tensor | None


def full_cache_reference(
    loaded: LoadedModel,
    ids: Tensor,
    max_new_tokens: int,
    watch: Watch,
    prefill_chunk: int | None = None,
    treated: GenerationSettings = "ignore",
) -> Reference:
    """Decode greedily with the full cache, through the same attention function as every method.

    `treated` says what becomes of the checkpoint's generation_config.
    """
    cache = make_cache(loaded, "full")
    start: Prefilled = prefill(loaded, cache, ids, prefill_chunk, watch.check)
    watch.advance("full cache continuation")
    step = lambda: watch.advance("full cache continuation")  # noqa: E731
    choose = chooser(loaded, ids, max_new_tokens, treated)
    chosen = list(greedy(loaded, cache, start.next_logits, max_new_tokens, step, choose))
    return Reference([token for token, _ in chosen], [row.cpu() for _, row in chosen], start.prompt_logprobs)


def divergence(full: Tensor, given: Tensor) -> tuple[float, bool]:
    """(KL(full || given) in nats, whether both have the same most likely token) of two log-probability rows (V,)."""
    given = given.to(full.device)
    gap = torch.where(torch.isneginf(full), 0.0, full.exp() * (full - given))
    return max(float(gap.sum()), 0.0), bool(full.argmax() == given.argmax())
