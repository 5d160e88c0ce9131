"""Score how well compressed caches predict a forced text, against the full cache on the same text.

The prefix is prefilled and compressed; the continuation follows token by token. Its first token is predicted by the
prefill, which still attends to everything, so scoring starts at the second. The continuation is given, or it is what
the full cache generates, in the same passes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvlab.core.cache import CompressedCache
from kvlab.engine.forward import end_ids
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.results.outcome import Outcome, read_memory
from kvlab.evaluation.shared_prompt import Check, SharedPrompt, failures_in_branches, nothing, sharing_groups
from kvlab.models.chat import decode_answer
from kvlab.models.load import LoadedModel

Predicted = tuple[Outcome, Tensor]


class Leader:
    """The cache that chooses the continuation: its likeliest tokens, until they end or are `most`, at least two."""

    def __init__(self, loaded: LoadedModel, number: int, stops: Stops, most: int) -> None:
        self.loaded, self.number, self.stops, self.most = loaded, number, stops, max(most, 2)
        self.ends = end_ids(loaded)
        self.ids: list[int] = []
        self.is_complete = False

    def choose(self, continuation: list[int], logits: Tensor) -> None:
        """Add a token to the continuation, from logits or log-probabilities (1, V)."""
        self.ids = continuation
        continuation.append(int(logits.argmax()))
        text = decode_answer(self.loaded.tokenizer, continuation)
        ended = continuation[-1] in self.ends or self.stops.are_in(text)
        self.is_complete = len(continuation) >= 2 and (ended or len(continuation) >= self.most)

    @property
    def text(self) -> str:
        """The text that the full cache wrote, cut as a generated answer is."""
        return self.stops.cut(decode_answer(self.loaded.tokenizer, self.ids))


def forced_together(
    loaded: LoadedModel,
    prefix: list[int],
    continuation: list[int],
    caches: Sequence[CompressedCache],
    in_sight: int | None = None,
    prefill_chunk: int | None = None,
    check: Check = nothing,
    leader: Leader | None = None,
) -> list[Predicted | Exception]:
    """For each cache the outcome without measures and log-probabilities (len(continuation) - 1, V) in float32, or the
    error that ended it.

    Row i predicts continuation[i + 1]. The first `in_sight` tokens of the prefix (default: all) are read at once or in
    chunks of `prefill_chunk`, then compressed; raises UserError for a method whose result chunks would change. With a
    `leader`, `continuation` is empty at first and receives the tokens that it chooses.
    """
    results: dict[int, Predicted | Exception] = {}
    tokens_in_sight = len(prefix) if in_sight is None else in_sight
    groups = sharing_groups(caches)
    for group in sorted(groups, key=lambda numbers: leader is not None and leader.number not in numbers):
        shared = SharedPrompt(
            loaded, [caches[number] for number in group], [prefix], tokens_in_sight, prefill_chunk, check
        )
        branches = dict(zip(group, shared.branches, strict=True))
        rows: dict[int, list[Tensor]] = {number: [] for number in group}
        with failures_in_branches(shared.fan_out):
            logits = shared.read()
            place = 0
            leads = leader if leader is not None and leader.number in branches else None
            while True:
                if leads is not None and not leads.is_complete:
                    if branches[leads.number].error is not None:
                        break
                    leads.choose(continuation, logits[branches[leads.number].rows])
                if place >= len(continuation) - (leads is None or leads.is_complete):
                    break
                check()
                logits = torch.log_softmax(shared.step([continuation[place]] * shared.fan_out.num_rows), -1)
                place += 1
                for number, branch in branches.items():
                    if branch.error is None:
                        rows[number].append(logits[branch.rows])
        for number, branch in branches.items():
            if branch.error is not None:
                results[number] = branch.error
                continue
            prompt_seconds = shared.prompt_seconds(branch)
            seconds = prompt_seconds + shared.decode_seconds(branch)
            outcome = Outcome("", read_memory(branch.cache, 1)[0], seconds, prompt_seconds)
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
