"""Score how well a compressed cache predicts a forced text, against the full cache on the same text.

The prefix is prefilled and compressed; the continuation follows token by token. Its first token is predicted by the
prefill, which still attends to everything, so scoring starts at the second.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from transformers import Cache

from kvlab.evaluate.passes import pass_ends
from kvlab.evaluate.results.outcome import Loaded, Outcome, Stopwatch, read_memory
from kvlab.models.placement import input_device


def forced_log_probabilities(
    loaded: Loaded,
    prefix: list[int],
    continuation: list[int],
    cache: Cache,
    chunk: int = 1,
    prefill_chunk: int | None = None,
) -> tuple[torch.Tensor, Outcome]:
    """Log probabilities (len(continuation) - 1, vocabulary) in float32, and the outcome without measures.

    Row i predicts continuation[i + 1]. `chunk` tokens are forced per forward pass; 1 is decoding. The prefix is read at
    once or in chunks of `prefill_chunk`; raises UserError for a method whose result these would change.
    """
    device = input_device(loaded.model)
    ids = torch.tensor([prefix + continuation], device=device)
    start, end = len(prefix), ids.shape[1] - 1
    watch = Stopwatch(device)
    rows = []
    ends = pass_ends(cache, start, prefill_chunk)
    with watch.running(), watch.until(loaded.model, len(ends)) as took, torch.inference_mode():
        begun = 0
        for stop in ends:
            _forward(loaded, ids[:, begun:stop], stop, cache)
            begun = stop
        for place in range(start, end, chunk):
            stop = min(place + chunk, end)
            rows.append(_forward(loaded, ids[:, place:stop], stop, cache, stop - place))
    logits = torch.cat(rows).float()
    outcome = Outcome(prediction="", memory=read_memory(cache, 1), seconds=watch.seconds, prompt_seconds=sum(took))
    return torch.log_softmax(logits, dim=-1), outcome


def _forward(loaded: Loaded, ids: torch.Tensor, seen: int, cache: Cache, keep: int = 1) -> torch.Tensor:
    mask = torch.ones(1, seen, dtype=torch.long, device=ids.device)
    return loaded.model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits[0]


def compare(
    outcome: Outcome, log_probabilities: torch.Tensor, reference: torch.Tensor, continuation: list[int], text_bytes: int
) -> Outcome:
    """Add bits per byte, mean KL(full || this) in nats per token, and top-1 agreement with the full cache."""
    targets = torch.tensor(continuation[1:], device=log_probabilities.device)
    nats = -log_probabilities.gather(1, targets[:, None]).double().sum().item()
    divergence = (reference.exp() * (reference - log_probabilities)).sum(dim=1).double().mean().item()
    agreement = (reference.argmax(dim=1) == log_probabilities.argmax(dim=1)).double().mean().item()
    return replace(
        outcome, bits_per_byte=nats / math.log(2) / text_bytes, kl=max(divergence, 0.0), top1_agreement=agreement
    )


def scored_bytes(loaded: Loaded, continuation: list[int]) -> int:
    """UTF-8 length of the scored part of a continuation."""
    return max(1, len(str(loaded.tokenizer.decode(continuation[1:])).encode()))
