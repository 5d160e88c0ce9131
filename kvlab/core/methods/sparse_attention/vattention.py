"""vAttention (arXiv 2510.05688): the heaviest slots exactly, and a random sample of the rest that bounds the error."""

from statistics import NormalDist
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import NEVER, Chosen, Held, Index, SparseCapabilities, SparseShare, register_sparse_attention
from kvlab.core.methods.sparse_attention.selection import always, counts_of, of_sets, step_draws

# draws of the two samples
BASE = 1
SAMPLE = 2


@register_sparse_attention
class VAttention(SparseShare):
    """Reads sinks, newest tokens and the top slots; of the n others a uniform sample of b, each weighted by n / b.

    A base sample gives the deviation s of the others' exp logits and the normaliser's estimate D. With b = (z s n /
    (epsilon D))^2, z = Phi^-1(1 - delta / 2), the normaliser is within epsilon of the true one with probability 1 -
    delta, by the central limit theorem. The sample is drawn apart from the base sample, so that given b it is unbiased.
    As in the paper's first variant the top slots are an oracle's, whose search is free; the paper also takes learned
    hashes. `share` is that of the top slots.
    """

    name = "vattention"
    title = "vAttention"
    paper = "https://arxiv.org/abs/2510.05688"
    acts_on = "slots and samples"
    capabilities: ClassVar[SparseCapabilities] = SparseCapabilities(
        samples=True, indexes=False, per_query_head=True, oracle=True
    )

    share: float = Field(0.05, gt=0, le=1, description="share of the slots that are read as the heaviest")
    sinks: int = Field(4, ge=0, description="first tokens that are always read")
    recent: int = Field(64, ge=0, description="newest tokens that are always read")
    epsilon: float = Field(0.1, gt=0, lt=1, description="relative error allowed in the normaliser")
    delta: float = Field(0.1, gt=0, lt=1, description="probability that the error is larger")
    base: float = Field(0.025, gt=0, le=1, description="share of the others in the base sample")

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        logits = held.logits(query)
        live = held.live()[:, :, None]
        near = always(held, self.sinks, self.recent)[:, :, None]
        heavy = _rank(logits.masked_fill(near, NEVER)) < counts_of(self, live)[..., None]
        exact = (near | heavy) & held.valid()[:, :, None]
        others = held.valid()[:, :, None] & ~exact
        number = others.sum(-1)
        # Size (B, H, G) of the base sample: at least two where there are two.
        base_size = torch.minimum((self.base * number).ceil().clamp_min(2).long(), number)
        base = _first_drawn(step_draws(held, logits.shape[2], BASE), others, base_size)
        scale = (logits - logits.amax(-1, keepdim=True)).exp()
        count = base.sum(-1).clamp_min(2)
        mean = (scale * base).sum(-1) / base.sum(-1).clamp_min(1)
        spread = (((scale - mean[..., None]).square() * base).sum(-1) / (count - 1)).sqrt()
        normaliser = (scale * exact).sum(-1) + number * mean
        # Size of the sample itself.
        size = (NormalDist().inv_cdf(1 - self.delta / 2) * spread * number / (self.epsilon * normaliser)).square()
        size = torch.minimum(torch.maximum(size.ceil(), base_size.float()), number.float()).clamp_min(1)
        sample = _first_drawn(step_draws(held, logits.shape[2], SAMPLE), others, size)
        weight = (number / size).log()[..., None].expand(exact.shape).masked_fill(exact, 0.0)
        key_bytes = held.keys.shape[-1] * held.keys.dtype.itemsize
        return of_sets(exact | sample, weight, base_size.sum(2) * key_bytes)


def _first_drawn(draws: Tensor, others: Tensor, size: Tensor) -> Tensor:
    """`size` (B, H, G) of the `others` (B, H, G, S), uniformly without replacement."""
    return others & (_rank(draws.masked_fill(~others, NEVER)) < size[..., None])


def _rank(score: Tensor) -> Tensor:
    """Rank (..., S) of each slot, the highest first."""
    return score.argsort(dim=-1, descending=True, stable=True).argsort(-1)
