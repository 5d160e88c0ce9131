"""Score how well compressed caches predict a forced text, against the full cache on the same text.

The prefix is prefilled and compressed; the continuation follows token by token. Its first token is predicted by the
prefill, which still attends to everything, so scoring starts at the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvlab.cache import CompressedCache
from kvlab.evaluate.results.outcome import Loaded, Outcome, read_memory
from kvlab.evaluate.shared_prompt import Check, SharedPrompt, failures_in_branches, nothing, sharing_groups

Predicted = tuple[Outcome, Tensor]


def forced_together(
    loaded: Loaded,
    prefix: list[int],
    continuation: list[int],
    caches: Sequence[CompressedCache],
    prefill_chunk: int | None = None,
    check: Check = nothing,
) -> list[Predicted | Exception]:
    """For each cache the outcome without measures and log-probabilities (len(continuation) - 1, V) in float32, or the
    error that ended it.

    Row i predicts continuation[i + 1]. The prefix is read at once or in chunks of `prefill_chunk`; raises UserError for
    a method whose result these would change.
    """
    results: dict[int, Predicted | Exception] = {}
    for group in sharing_groups(caches):
        shared = SharedPrompt(loaded, [caches[number] for number in group], [prefix], len(prefix), prefill_chunk, check)
        branches = dict(zip(group, shared.branches, strict=True))
        rows: dict[int, list[Tensor]] = {number: [] for number in group}
        with failures_in_branches(shared.fan_out):
            shared.read()
            for token in continuation[:-1]:
                check()
                logits = torch.log_softmax(shared.step([token] * shared.fan_out.num_rows), -1)
                for number, branch in branches.items():
                    if branch.error is None:
                        rows[number].append(logits[branch.rows])
        for number, branch in branches.items():
            if branch.error is not None:
                results[number] = branch.error
                continue
            prompt_seconds = shared.prompt_seconds(branch)
            seconds = prompt_seconds + shared.decode_seconds(branch)
            outcome = Outcome("", read_memory(branch.cache, 1), seconds, prompt_seconds)
            results[number] = outcome, torch.cat(rows[number])
    return [results[number] for number in range(len(caches))]


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
