"""Log-likelihoods of continuations under a compressed cache, by one of two protocols.

*decode*: the context without its last h tokens is prefilled and compressed, and the rest is fed token by token. Prefill
attends to the full prompt, so with h = 0 the first token of every continuation would be scored as with the full cache.
*simulated*: the whole text is fed token by token, with a decision after each; a budget given as a share is one of all
tokens fed, as in H2O's code for lm-eval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kvlab.core.cache import CompressedCache
from kvlab.core.cache.fan_out.fan_out_layer import Branch
from kvlab.core.cache.replay import supports_token_by_token, token_by_token
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.evaluate.results.outcome import Loaded, Memory, Stopwatch, read_memory
from kvlab.evaluate.shared_prompt import SharedPrompt, failures_in_branches, sharing_groups
from kvlab.models.placement import input_device
from kvlab.requests.compare import FULL, MethodChoice

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class ContextGroup:
    """A context and the continuations to score after it; `indices` are their positions in the list of requests."""

    context: Tokens
    continuations: tuple[Tokens, ...]
    indices: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the context and the longest continuation."""
        return len(self.context) + max(map(len, self.continuations))


def fit_window(context: Sequence[int], continuation: Sequence[int], window: int) -> tuple[Tokens, Tokens]:
    """The pair, with the context truncated on the left as in lm-eval; the last token is predicted but never fed.

    Raises UserError for a continuation that leaves no space for a context.
    """
    if len(continuation) > window:
        raise UserError(
            f"A continuation of {len(continuation):,} tokens does not fit the model's context window of {window:,}: "
            "choose another task or model."
        )
    excess = max(0, len(context) + len(continuation) - window - 1)
    return tuple(context[excess:]), tuple(continuation)


def group_pairs(pairs: Sequence[tuple[Tokens, Tokens]], same_text: bool) -> list[ContextGroup]:
    """Group pairs by context, in order.

    `same_text`: continuations of a group must differ in their last token only, which is predicted but not fed.
    """
    groups: dict[tuple[Tokens, Tokens], list[int]] = {}
    for index, (context, continuation) in enumerate(pairs):
        groups.setdefault((context, continuation[:-1] if same_text else ()), []).append(index)
    return [
        ContextGroup(context, tuple(pairs[index][1] for index in indices), tuple(indices))
        for (context, _), indices in groups.items()
    ]


def equal_length_batches(groups: Sequence[ContextGroup], whole: bool, rows: int) -> Iterator[list[ContextGroup]]:
    """Batches of at most `rows` contexts (`whole`: texts) of equal length.

    The longest come first, so that an out-of-memory error comes at once.
    """
    lengths: dict[int, list[ContextGroup]] = {}
    for group in groups:
        lengths.setdefault(group.prompt_tokens if whole else len(group.context), []).append(group)
    for _, equal in sorted(lengths.items(), reverse=True):
        yield from (equal[start : start + rows] for start in range(0, len(equal), rows))


@dataclass(frozen=True)
class Scored:
    """For each continuation its log-probability in nats, and whether greedy decoding would generate it."""

    answers: tuple[tuple[float, bool], ...]
    in_sight: int  # tokens in the cache at its first decision
    memory: Memory  # per context: after reading it (decode), or at the end of the text (simulated)
    seconds: float
    prompt_seconds: float | None = None


def score_decoded(
    loaded: Loaded,
    groups: Sequence[ContextGroup],
    caches: Sequence[CompressedCache],
    hold_back: int,
    prefill_chunk: int | None = None,
) -> list[list[Scored] | Exception]:
    """For each cache its scores of contexts of equal length, or the error that ended it.

    Caches that can share passes read the contexts once. All continuations start from one prefilled cache. Raises
    UserError if `prefill_chunk` would change a method's result.
    """
    found: dict[int, list[Scored] | Exception] = {}
    for numbers in sharing_groups(caches):
        together = [caches[number] for number in numbers]
        found |= zip(numbers, _score_together(loaded, groups, together, hold_back, prefill_chunk), strict=True)
    return [found[number] for number in range(len(caches))]


@torch.inference_mode()
def _score_together(
    loaded: Loaded,
    groups: Sequence[ContextGroup],
    caches: Sequence[CompressedCache],
    hold_back: int,
    prefill_chunk: int | None,
) -> list[list[Scored] | Exception]:
    length, count = len(groups[0].context), len(groups)
    prefill = max(1, length - hold_back)
    begun = [list(group.context[:prefill]) for group in groups]
    shared = SharedPrompt(loaded, caches, begun, prefill, prefill_chunk)
    found: dict[Branch, list[Scored]] = {}
    with failures_in_branches(shared.fan_out):
        logits = shared.read()
        for place in range(prefill, length):
            logits = shared.step([group.context[place] for group in groups] * len(shared.fan_out.branches))
        memory = {branch: read_memory(branch.cache, count) for branch in shared.fan_out.branches}
        for branch, answers in _score_continuations(shared, logits, groups).items():
            prompt_seconds = shared.prompt_seconds(branch) / count
            seconds = prompt_seconds + shared.decode_seconds(branch) / count
            pairs = zip(answers, memory[branch], strict=True)
            found[branch] = [Scored(own, prefill, held, seconds, prompt_seconds) for own, held in pairs]
    return [found[branch] if branch.error is None else branch.error for branch in shared.branches]


def _score_continuations(
    shared: SharedPrompt, logits: Tensor, groups: Sequence[ContextGroup]
) -> dict[Branch, list[tuple[tuple[float, bool], ...]]]:
    """Score each continuation in a row of its own, a copy of its context's; `logits` (R, V) predict the first tokens.

    Shorter continuations are padded, and the padding is not counted. Branches that fail are left out.
    """
    device, fan_out = logits.device, shared.fan_out
    rows = [row for row, group in enumerate(groups) for _ in group.continuations]
    continuations = [torch.tensor(x, dtype=torch.long, device=device) for group in groups for x in group.continuations]
    tokens = pad_sequence(continuations, batch_first=True)
    lengths = torch.tensor([len(continuation) for continuation in continuations], device=device)
    predicted, longest = {branch: logits[branch.rows][rows] for branch in fan_out.branches}, tokens.shape[1]
    if longest > 1:
        for branch in fan_out.branches:
            fan_out.keep_rows(branch, rows)
    logprobs: dict[Branch, list[Tensor]] = {branch: [] for branch in predicted}
    greedy: dict[Branch, list[Tensor]] = {branch: [] for branch in predicted}
    for step in range(longest):
        if step:
            logits = shared.step(tokens[:, step - 1].tolist() * len(fan_out.branches))
            predicted = {branch: logits[branch.rows] for branch in fan_out.branches}
        for branch, own in predicted.items():
            logprob, is_greedy = _token_scores(own, tokens[:, step])
            logprobs[branch].append(logprob)
            greedy[branch].append(is_greedy)
    counted = torch.arange(longest, device=device) < lengths[:, None]
    answers: dict[Branch, list[tuple[tuple[float, bool], ...]]] = {}
    for branch in fan_out.branches:
        sums = (torch.stack(logprobs[branch], 1) * counted).sum(1).tolist()
        all_greedy = (torch.stack(greedy[branch], 1) | ~counted).all(1).tolist()
        pairs = iter(zip(sums, all_greedy, strict=True))
        answers[branch] = [tuple(next(pairs) for _ in group.continuations) for group in groups]
    return answers


def score_simulated(loaded: Loaded, groups: Sequence[ContextGroup], cache: CompressedCache) -> list[Scored]:
    """Score texts of equal length, with a decision after each token.

    The continuations of one context must differ in their last token only, which is predicted but not fed. If possible,
    the text is run in one pass in which only the cache works token by token.
    """
    device, count = input_device(loaded.model), len(groups)
    texts = [(*group.context, *group.continuations[0][:-1]) for group in groups]
    ids, keep = torch.tensor(texts, device=device), max(len(group.continuations[0]) for group in groups)
    cache.settings.text_tokens = ids.shape[1]
    watch = Stopwatch(device)
    with watch.running(), torch.inference_mode():
        if supports_token_by_token(cache):
            with token_by_token(cache):
                logits = _forward(loaded, cache, ids, keep)
        else:
            steps = [_forward(loaded, cache, ids[:, step : step + 1]) for step in range(ids.shape[1])]
            logits = torch.cat(steps[-keep:], 1)
        memory = read_memory(cache, count)
        answers = [tuple(_score(logits[row], x) for x in group.continuations) for row, group in enumerate(groups)]
    pairs = zip(answers, memory, strict=True)
    return [Scored(scores, 1, held, watch.seconds / count) for scores, held in pairs]


def _score(logits: Tensor, continuation: Tokens) -> tuple[float, bool]:
    """Score a continuation from the logits (q, V) of a text's last tokens, each of which predicts the next."""
    tokens = torch.tensor(continuation, device=logits.device)
    logprobs, greedy = _token_scores(logits[-len(continuation) :], tokens)
    return logprobs.sum().item(), bool(greedy.all())


def _token_scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N,) in float64, normalized in float32, of `tokens` (N,) under (N, V); which are the argmax."""
    logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs.gather(1, tokens[:, None])[:, 0].double(), logprobs.argmax(-1) == tokens


def _forward(loaded: Loaded, cache: CompressedCache, ids: Tensor, keep: int = 1) -> Tensor:
    model: Any = loaded.model
    return model(ids, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits


def check_simulated(choice: MethodChoice) -> None:
    """Raise UserError for a method that never acts during decoding."""
    method = make_method(choice.method, **choice.hyper_parameters)
    if choice.method == FULL.method or method.pipeline().decode:
        return
    alternative = f", or {choice.method}:decode=budget" if "decode" in type(method).model_fields else ""
    raise UserError(
        f"{choice.label} compresses only prompts, so it would keep every token of a text fed token by token: "
        f"choose --protocol decode{alternative}."
    )
