"""Compare GVote's sampled queries with the actual later queries, using GVote's own code."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.attention.pass_view import PassSeen
from kvlab.engine.probing.hidden_gaussian import Moments
from kvlab.methods.allocators.ballots import ChosenSlots
from kvlab.methods.core.view import Slots, View
from kvlab.methods.eviction.gvote import GVote
from kvlab.methods.scorers.lookahead.gvote import Ballots, chosen, nucleus_size


def sampled_queries(
    gvote: GVote, slots: Slots, seen: PassSeen, prompt_tokens: int, inner_states: Moments, dtype: torch.dtype
) -> dict[str, Tensor]:
    """GVote's decision after the prompt, and the attention of the queries after it. Batch of one.

    `slots` are those of prompt and continuation; `seen` has the continuation's queries and at least the last of the
    prompt's; `inner_states` are the moments of the prompt's hidden states (of `dtype`) without the sinks. T: prompt
    tokens, S: samples. Attention is over the prompt only and sums to one. By KV head (H), means over its query heads:
    `true` (H, T) of the first query after the prompt, `synthetic` (H, T) mean over the samples, `ballots` (H, T);
    `overlap` and `usage` (H, S): true attention to each sample's nucleus of `p_nuc`, and that nucleus's share of the
    prompt (GVote, figure 3a), `true_usage` (H,) the same of the true query; `inner_...` the same without the sinks;
    `step_budget` (H,) the share of the prompt that one sample may choose; `union` and `covered` (H, S + 1): the kept
    set's share of the prompt and of the true attention after 0 to S samples (0: the protected slots alone);
    `future` (H, m): attention of each later query to the final kept set.
    """
    score, protect = _parts(gvote)
    slots = slots.map(lambda tensor: tensor[:, :, :prompt_tokens])
    prompt = seen.up_to(prompt_tokens)
    inner = slots.position[:, 0].int() >= score.sinks  # (1, T)
    eligible = torch.ones_like(inner) if score.count_sinks else inner
    tokens = torch.tensor([prompt_tokens], device=inner.device)
    mean, deviation = (one[None].float().to(inner.device) for one in (inner_states.mean, inner_states.deviation))
    queries = score.future.draw_from(prompt, mean, deviation, dtype, tokens)  # (1, Hq, S, d)
    count = score.step_budget(prompt, torch.ones_like(inner), eligible)
    guarded = protect.protect.protected(_view(slots, prompt, tokens))[0]  # (H, T)
    choices = torch.stack([choice[0] for choice in score.choices(prompt, queries, eligible, count)])  # (S, H, T)
    future = torch.softmax(prompt.logits_of(seen.query[:, :, prompt.num_new :])[0], -1)  # (H, G, m, T)
    sampled = torch.softmax(prompt.logits_of(queries)[0], -1)  # (H, G, S, T)
    arrays = {
        "true": future[:, :, 0].mean(1),
        "synthetic": sampled.mean((1, 2)),
        "ballots": choices.float().sum(0),
        "step_budget": count[0].float().mean(-1) / prompt_tokens,
    }
    arrays |= _overlaps(future[:, :, 0], sampled, score.p_nuc, "")
    arrays |= _overlaps(_inside(future[:, :, 0], inner), _inside(sampled, inner), score.p_nuc, "inner_")
    return arrays | _growth(choices, guarded, future.mean(1))


def _parts(gvote: GVote) -> tuple[Ballots, ChosenSlots]:
    pipeline = gvote.pipeline()
    assert isinstance(pipeline.score, Ballots) and isinstance(pipeline.allocate, ChosenSlots)
    return pipeline.score, pipeline.allocate


def _view(slots: Slots, seen: PassSeen, tokens: Tensor) -> View:
    most = int(tokens)
    budget = torch.full(slots.valid.shape[:2], most, device=tokens.device)
    return View(slots, seen, budget, tokens, "prefill", 0, most, False, 0, 1)


def _inside(mass: Tensor, inner: Tensor) -> Tensor:
    """Attention (H, G, ..., T) restricted to the `inner` (1, T) tokens and renormalised."""
    mass = mass.masked_fill(~inner[0], 0.0)
    return mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)


def _overlaps(true: Tensor, sampled: Tensor, share: float, prefix: str) -> dict[str, Tensor]:
    """True attention (H, G, T) inside each sample's nucleus, and the sizes of the nuclei.

    Query heads without mass have no nucleus and are left out; NaN where no query head has one.
    """
    sizes, wanted = nucleus_size(sampled, share), nucleus_size(true, share)
    sets = chosen(sampled, sizes, int(sizes.max()))  # (H, G, S, T)
    tokens = true.shape[-1]
    overlap = (true[:, :, None] * sets).sum(-1).masked_fill((sizes == 0) | (wanted == 0)[..., None], torch.nan)
    usage, true_usage = (count.float().masked_fill(count == 0, torch.nan) / tokens for count in (sizes, wanted))
    return {
        f"{prefix}overlap": overlap.nanmean(1),
        f"{prefix}usage": usage.nanmean(1),
        f"{prefix}true_usage": true_usage.nanmean(1),
    }


def _growth(choices: Tensor, guarded: Tensor, future: Tensor) -> dict[str, Tensor]:
    """The kept set sample by sample, from `choices` (S, H, T), `guarded` (H, T) and `future` (H, m, T)."""
    kept = torch.cat([guarded[None], guarded | (choices.cumsum(0) > 0)])  # (S + 1, H, T)
    return {
        "union": kept.float().mean(-1).T,
        "covered": (future[:, 0] * kept).sum(-1).T,
        "future": (future * kept[-1][:, None]).sum(-1),
    }
