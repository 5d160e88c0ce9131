"""Log-probabilities of continuations under a compressed cache, by one of two protocols.

*decode*: the context but its last h tokens is prefilled and compressed, and what is left goes in token by token. A
prompt that is prefilled attends to everything, so with h = 0 the first token of every continuation would be scored as
by the full cache. *simulated*: the whole text goes in token by token from the first one, each decided about as it
comes; a budget that is a share is one of all tokens fed, as in H2O's code for the harness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.cache import CompressedCache
from kvlab.cache.replay.steps import supports_token_by_token, token_by_token
from kvlab.common.errors import UserError
from kvlab.evaluate.passes import pass_ends
from kvlab.evaluate.results.outcome import Loaded, Memory, Stopwatch, read_memory
from kvlab.lmeval.texts import Asked
from kvlab.methods import make_method
from kvlab.models.placement import input_device
from kvlab.requests.compare import FULL, MethodChoice


@dataclass(frozen=True)
class Scored:
    """For each continuation its log-probability in nats, and whether greedy decoding would have written it."""

    answers: tuple[tuple[float, bool], ...]
    in_sight: int  # tokens that were there when the cache first decided
    memory: Memory  # one context's share: once it was read (decode), or at the text's end (simulated)
    seconds: float
    prompt_seconds: float | None = None


def score_decoded(
    loaded: Loaded, asked: Sequence[Asked], cache: CompressedCache, hold_back: int, prefill_chunk: int | None = None
) -> list[Scored]:
    """Score contexts of one length with all their continuations, which go on from one prefilled cache.

    Raises UserError where `prefill_chunk` would change the method's result.
    """
    device, count = input_device(loaded.model), len(asked)
    ids = torch.tensor([one.context for one in asked], device=device)
    length = ids.shape[1]
    cut = max(1, length - hold_back)
    ends = pass_ends(cache, cut, prefill_chunk)
    watch, begun = Stopwatch(device), 0
    logits = torch.empty(0)
    with watch.running(), watch.until(loaded.model, len(ends)) as took, torch.inference_mode():
        for end in [*ends, *range(cut + 1, length + 1)]:
            logits, begun = _pass(loaded, cache, ids[:, begun:end])[:, -1], end
        memory = read_memory(cache, count)
        answers = _continuations(loaded, cache, logits, asked)
    return [Scored(found, cut, memory, watch.seconds / count, sum(took) / count) for found in answers]


def _continuations(
    loaded: Loaded, cache: CompressedCache, logits: Tensor, asked: Sequence[Asked]
) -> list[tuple[tuple[float, bool], ...]]:
    """Every continuation in a row of its own, a copy of its context's; `logits` (B, V) predict the first tokens.

    Rows that end early are fed on with what does not count.
    """
    flat = [(row, continuation) for row, one in enumerate(asked) for continuation in one.continuations]
    rows = torch.tensor([row for row, _ in flat], device=logits.device)
    longest = max(len(continuation) for _, continuation in flat)
    padded = [[*continuation, *[0] * (longest - len(continuation))] for _, continuation in flat]
    tokens = torch.tensor(padded, device=logits.device)
    lengths = torch.tensor([len(continuation) for _, continuation in flat], device=logits.device)
    found, best = [], []
    predicted = logits[rows]
    if longest > 1:
        cache.reorder_cache(rows)  # type: ignore[arg-type]  # any tensor of whole numbers
    for place in range(longest):
        if place:
            predicted = _pass(loaded, cache, tokens[:, place - 1 : place])[:, -1]
        chosen, greedy = _chosen(predicted, tokens[:, place])
        found.append(chosen)
        best.append(greedy)
    counts = torch.arange(longest, device=logits.device) < lengths[:, None]
    sums = (torch.stack(found, 1) * counts).sum(1).tolist()
    greedily = (torch.stack(best, 1) | ~counts).all(1).tolist()
    answers = iter(zip(sums, greedily, strict=True))
    return [tuple(next(answers) for _ in one.continuations) for one in asked]


def score_simulated(
    loaded: Loaded, asked: Sequence[Asked], cache: CompressedCache, whole: bool | None = None
) -> list[Scored]:
    """Score texts of one length, decided about token by token from the first one.

    The continuations of one context must differ in their last token only, which is predicted but not fed.
    `whole`: the model takes the text in one pass in which only the cache goes token by token; None: where it can.
    """
    device, count = input_device(loaded.model), len(asked)
    texts = [(*one.context, *one.continuations[0][:-1]) for one in asked]
    ids, keep = torch.tensor(texts, device=device), max(len(one.continuations[0]) for one in asked)
    cache.settings.text_tokens = ids.shape[1]
    watch = Stopwatch(device)
    with watch.running(), torch.inference_mode():
        if supports_token_by_token(cache) if whole is None else whole:
            with token_by_token(cache):
                logits = _pass(loaded, cache, ids, keep)
        else:
            rows = [_pass(loaded, cache, ids[:, place : place + 1]) for place in range(ids.shape[1])]
            logits = torch.cat(rows[-keep:], 1)
        memory = read_memory(cache, count)
        answers = [tuple(_answer(logits[row], x) for x in one.continuations) for row, one in enumerate(asked)]
    return [Scored(of_one, 1, memory, watch.seconds / count) for of_one in answers]


def _answer(logits: Tensor, continuation: tuple[int, ...]) -> tuple[float, bool]:
    """From the logits (q, V) of a text's last tokens, each of which predicts the next."""
    chosen, greedy = _chosen(logits[-len(continuation) :], torch.tensor(continuation, device=logits.device))
    return chosen.sum().item(), bool(greedy.all())


def _chosen(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N,) in float64, normalized in float32, of `tokens` (N,) under (N, V); which are likeliest."""
    logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs.gather(1, tokens[:, None])[:, 0].double(), logprobs.argmax(-1) == tokens


def _pass(loaded: Loaded, cache: CompressedCache, ids: Tensor, keep: int = 1) -> Tensor:
    model: Any = loaded.model
    return model(ids, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits


def check_simulated(choice: MethodChoice) -> None:
    """Raise UserError for a method that never acts while tokens come one by one."""
    method = make_method(choice.method, **choice.hyper_parameters)
    if choice.method == FULL.method or method.pipeline().decode:
        return
    goes_on = f", or {choice.method}:decode=budget" if "decode" in type(method).model_fields else ""
    raise UserError(
        f"{choice.label} compresses a prompt once, so token by token from the first one it would keep everything: "
        f"choose --protocol decode{goes_on}."
    )
