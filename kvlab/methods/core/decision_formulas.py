"""Formulas shared by settlers' plans and in-place kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOT_YET = -2.0  # initial value of a moving threshold: below every cosine
NEVER_SEEN = -1e4  # replaces log(0) so that arithmetic stays finite


def stays(position: Tensor, tokens_seen: Tensor, recent: Tensor, sinks: Tensor | None) -> Tensor:
    """Protected slots (B, H, S): the `recent` (B, H) newest of `tokens_seen` (B,), and the first `sinks` (B, H, 1)."""
    late = position >= (tokens_seen[:, None] - recent)[..., None]
    return late if sinks is None else late.logical_or_(position < sinks)


def judge_token(cosine: Tensor, old: Tensor, smoothing: float, begun: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(merge mask, new threshold, weight) of one token per head by rule `paper`, each (B, H, 1).

    `begun`: every head has judged a token before.
    """
    threshold = old.lerp(cosine, smoothing)
    if not begun:
        threshold = torch.where(old == NOT_YET, cosine, threshold)
    share = (cosine - 1).sigmoid()  # exp(cosine) / (exp(cosine) + e)
    return cosine >= threshold - 1e-6, threshold, share


@dataclass(frozen=True)
class Joined:
    """Result of merging one source into its target; `share` is the source's weight in key and value."""

    share: Tensor
    votes: Tensor
    log_mass: Tensor
    score: Tensor
    average: Tensor


def merge_pair(mass: Tensor, score: Tensor, votes: Tensor, missing_mass: Tensor, bias: bool, dim: int = -1) -> Joined:
    """Merge source and target, adjacent along `dim`, (B, H, 2); scores are predicted logits with log mass.

    `missing_mass` (B, H, 1): what the target's average lacks for queries it has not seen; `bias`: use the rule of that
    name, else `votes`. Results have the shape of `missing_mass`.
    """
    whole = finite(score)
    of_source, of_target = whole.chunk(2, dim)
    share, total = (of_source - of_target).sigmoid(), torch.logaddexp(of_source, of_target)
    together = torch.add(*votes.chunk(2, dim))
    if bias:
        bare_source, bare_target = (whole - mass).chunk(2, dim)
        mean = bare_target.lerp(bare_source, share)
        return Joined(share, together, total - mean, total, missing_mass + mean)
    log_mass = together.log()
    return Joined(share, together, log_mass, total, missing_mass + (total - log_mass))


def finite(logit: Tensor) -> Tensor:
    """Replace -inf and NaN by `NEVER_SEEN`."""
    return torch.nan_to_num(logit, nan=NEVER_SEEN, neginf=NEVER_SEEN)
