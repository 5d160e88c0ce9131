"""One optimization step: compiled bfloat16 forward and backward, loss on text and on answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Muon, Optimizer
from transformers import LlamaForCausalLM

from training.mini.rows import TEXT, Batch

Losses = tuple[Tensor, Tensor, Tensor, Tensor]


def _text_mean(losses: Tensor, chosen: Tensor) -> Tensor:
    return (losses * chosen).sum() / chosen.sum().clamp(min=1.0)


def _answer_mean(losses: Tensor, chosen: Tensor) -> Tensor:
    """Average within each row, then over rows, so that a long copy does not outweigh a short answer."""
    count = chosen.sum(-1)
    each_row = (losses * chosen).sum(-1) / count.clamp(min=1.0)
    return each_row.sum() / (count > 0).float().sum().clamp(min=1.0)


def loss_function(model: LlamaForCausalLM, device: str, compiled: bool) -> Callable[[Tensor, Tensor, float], Losses]:
    """f(tokens, marks, answer_weight) -> total loss, text loss, answer loss in nats, and hits."""

    def losses(tokens: Tensor, marks: Tensor, answer_weight: float) -> Losses:
        targets = tokens[:, 1:]
        with torch.autocast(device, dtype=torch.bfloat16):
            hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
            logits = model.lm_head(hidden)
        each = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        each = each.view(targets.shape)
        text = _text_mean(each, (marks == TEXT).float())
        answer = _answer_mean(each, (marks > 0).float())
        return text + answer_weight * answer, text.detach(), answer.detach(), logits.argmax(-1) == targets

    return torch.compile(losses, dynamic=False) if compiled else losses


def make_optimizers(model: LlamaForCausalLM, name: str, learning_rate: float) -> list[Optimizer]:
    """AdamW over all parameters, or Muon over the layers' matrices with AdamW over the rest."""
    inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed_tokens" in n]
    betas = (0.9, 0.95)
    if name == "adamw":
        groups = [{"params": inner, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
        return [AdamW(groups, lr=learning_rate, betas=betas)]
    if name == "muon":
        muon = Muon(inner, lr=learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
        return [muon, AdamW(rest, lr=learning_rate, betas=betas, weight_decay=0.0)]
    raise ValueError(f"unknown optimizer {name!r}: adamw or muon")


def to_tensors(batch: Batch, device: str) -> tuple[Tensor, Tensor]:
    """Tokens and marks of a batch as tensors."""
    return torch.from_numpy(batch.tokens).to(device), torch.from_numpy(batch.marks).to(device)


def answers_right(batch: Batch, hits: Tensor) -> dict[str, list[bool]]:
    """For each task whether each of its answers was predicted in full."""
    results: dict[str, list[bool]] = {}
    for task, marks, hit in zip(batch.tasks, batch.marks, hits.cpu().numpy(), strict=True):
        for answer in range(1, int(marks.max()) + 1):
            chosen = marks == answer
            if chosen.any():
                results.setdefault(task, []).append(bool(hit[chosen].all()))
    return results
