"""Abilities of a mini model with a full cache: recall, bits per byte, sinks and induction heads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from training.mini.rows import Row, Tokens, stack
from training.mini.step import answers_right
from training.mini.text import Text


@torch.inference_mode()
def _logits(model: LlamaForCausalLM, tokens: Tensor, chosen: Tensor) -> Tensor:
    """Logits (chosen, vocabulary) at some positions of (1, T) tokens; the last product is in float32."""
    hidden = model.model(input_ids=tokens.to(model.device), use_cache=False).last_hidden_state[0]
    return functional.linear(hidden[chosen.to(model.device)].float(), model.lm_head.weight.float()).cpu()


def recall(model: LlamaForCausalLM, make_row: Callable[[np.random.Generator], Row], samples: int, seed: int) -> float:
    """Share of answers whose tokens are all the most probable ones (greedy decoding)."""
    rng = np.random.default_rng(seed)
    right: list[bool] = []
    for _ in range(samples):
        batch = stack([make_row(rng)])
        tokens = torch.from_numpy(batch.tokens)
        asked = torch.from_numpy(batch.marks[0] > 0)
        hits = torch.zeros(batch.marks.shape, dtype=torch.bool)
        hits[0, asked] = _logits(model, tokens[:, :-1], asked).argmax(-1) == tokens[0, 1:][asked]
        for answers in answers_right(batch, hits).values():
            right += answers
    return sum(right) / len(right)


def token_losses(model: LlamaForCausalLM, window: Tokens, bos_token_id: int, scored: int) -> Tensor:
    """Loss in nats of the last `scored` tokens of a window read after BOS."""
    tokens = torch.from_numpy(np.concatenate([[bos_token_id], window]))[None]
    last = torch.arange(len(window)) >= len(window) - scored
    return functional.cross_entropy(_logits(model, tokens[:, :-1], last), tokens[0, -scored:], reduction="none")


def bits_per_byte(model: LlamaForCausalLM, text: Text, length: int, windows: int | None = None) -> float:
    """Bits per byte on a text's books, each token with at least three quarters of `length` before it.

    Windows of `length` tokens advance by a quarter; the last quarter is scored. `windows` limits how many are read
    (evenly spread); tokens in a book's first three quarters of a window are not scored.
    """
    stride = length // 4
    ends = [
        end
        for start, stop in zip(text.starts[:-1], text.starts[1:], strict=True)
        for end in range(int(start) + length, int(stop), stride)
    ]
    if windows and windows < len(ends):
        ends = [ends[int(i)] for i in np.linspace(0, len(ends) - 1, windows)]
    nats, size = 0.0, 0
    for end in ends:
        window = text.tokens[end - length : end].astype(np.int64)
        nats += float(token_losses(model, window, text.bos_token_id, stride).sum())
        size += len(text.decode(window[-stride:]).encode())
    return nats / math.log(2) / size


def perplexity_by_context(
    model: LlamaForCausalLM, text: Text, contexts: tuple[int, ...], windows: int, scored: int = 128
) -> dict[int, float]:
    """Perplexity of the same tokens with increasing context from the same book."""
    longest = max(contexts)
    whole = zip(text.starts[:-1], text.starts[1:], strict=True)
    ends = np.concatenate([np.arange(start + longest, stop, scored) for start, stop in whole])
    ends = ends[np.linspace(0, len(ends) - 1, windows).astype(int)]
    result = {}
    for context in contexts:
        losses = [
            token_losses(model, text.tokens[end - context : end].astype(np.int64), text.bos_token_id, scored)
            for end in ends
        ]
        result[context] = math.exp(float(torch.cat(losses).mean()))
    return result


@torch.inference_mode()
def _attentions(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Attention probabilities (layers, heads, T, T), averaged over the batch; T should be short."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        attentions = model(input_ids=tokens.to(model.device), use_cache=False, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    return torch.stack([attention.float().mean(0) for attention in attentions])


def sink_scores(model: LlamaForCausalLM, text: Text, length: int = 256, windows: int = 8, seed: int = 0) -> Tensor:
    """Each head's average attention to the first token, (layers, heads), over real text after BOS."""
    rng = np.random.default_rng(seed)
    rows = np.stack([np.concatenate([[text.bos_token_id], text.span(rng, length - 1)]) for _ in range(windows)])
    attention = _attentions(model, torch.from_numpy(rows))
    return attention[:, :, length // 4 :, 0].mean(-1).cpu()


def induction_scores(
    model: LlamaForCausalLM, bos_token_id: int, period: int = 64, rows: int = 8, seed: int = 0
) -> Tensor:
    """Each head's induction score, (layers, heads).

    Average attention, in the second of two equal random spans, to the token that followed the current token the first
    time (Olsson et al. 2022, prefix matching).
    """
    rng = np.random.default_rng(seed)
    spans = np.stack([2 + rng.choice(model.config.vocab_size - 2, period, replace=False) for _ in range(rows)])
    tokens = np.concatenate([np.full((rows, 1), bos_token_id), spans, spans], axis=1)
    attention = _attentions(model, torch.from_numpy(tokens))
    queries = torch.arange(1 + period, 2 * period)
    return attention[:, :, queries, queries - period + 1].mean(-1).cpu()
