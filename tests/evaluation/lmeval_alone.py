"""Likelihoods for lm-eval by feeding tokens one by one, and random texts to score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache


def tokens(count: int, seed: int) -> tuple[int, ...]:
    """A text of random tokens after BOS."""
    generator = torch.Generator().manual_seed(seed)
    return (0, *torch.randint(2, 390, (count - 1,), generator=generator).tolist())


def _fed(lab: Any, cache: CompressedCache, text: Sequence[int], begun: int) -> list[Tensor]:
    """Log-probabilities after each token from `begun` on, fed one by one; what stands before goes in at once."""
    found = []
    with torch.inference_mode():
        if begun:
            lab.model(torch.tensor([text[:begun]]), past_key_values=cache)
        for place in range(begun, len(text)):
            logits = lab.model(torch.tensor([[text[place]]]), past_key_values=cache).logits[0, -1]
            found.append(torch.log_softmax(logits.double(), -1))
    return found


def slowly(
    lab: Any, cache: CompressedCache, context: Sequence[int], continuation: Sequence[int], begun: int
) -> tuple[float, bool]:
    """One choice by the definition of the protocol: nothing shared, nothing in batches."""
    found = _fed(lab, cache, [*context, *continuation[:-1]], begun)[-len(continuation) :]
    total = sum(float(row[token]) for row, token in zip(found, continuation, strict=True))
    return total, all(int(row.argmax()) == token for row, token in zip(found, continuation, strict=True))
