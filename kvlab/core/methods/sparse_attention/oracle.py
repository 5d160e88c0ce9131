"""Oracles: the slots with the highest true attention. No system knows them; they bound what a choice can reach.

Their bytes are those of the slots they choose: the search is free.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from kvlab.core.contract import NEVER
from kvlab.core.contract import sparse_attention as sparse
from kvlab.core.methods.sparse_attention.selection import always, best, of_group, of_sets

ORACLE = sparse.SparseCapabilities(indexes=False, oracle=True)


@sparse.register_sparse_attention
class OracleTopK(sparse.SparseShare):
    """The k slots with the highest mean attention of the group's query heads."""

    name = "oracle-topk"
    title = "Oracle, top k"
    capabilities: ClassVar[sparse.SparseCapabilities] = ORACLE

    def choose(self, query: Tensor, held: sparse.Held, index: sparse.Index) -> sparse.Chosen:
        return best(self, held, of_group(held.logits(query)))


@sparse.register_sparse_attention
class OracleTopP(sparse.SparseAttention):
    """The fewest slots that hold a share `mass` of the attention (mean of the group), so that flat heads read more.

    Twilight (arXiv 2502.02770, definition 3.2) calls this oracle top-p sparse attention; its experiments take p of .85
    to .95. Learned sinks are no slots: `mass` is a share of the attention on slots.
    """

    name = "oracle-topp"
    title = "Oracle, top p"
    paper = "https://arxiv.org/abs/2502.02770"
    exact_at = {"mass": 1.0}
    capabilities: ClassVar[sparse.SparseCapabilities] = ORACLE

    mass: float = Field(0.95, gt=0, le=1, description="share of the attention that the slots read hold")

    def choose(self, query: Tensor, held: sparse.Held, index: sparse.Index) -> sparse.Chosen:
        mean = held.logits(query).softmax(-1).mean(2, keepdim=True)
        order = mean.masked_fill(always(held)[:, :, None], 2.0).sort(-1, descending=True)
        sorted_mass = mean.gather(3, order.indices)
        before = sorted_mass.cumsum(-1) - sorted_mass
        enough = before >= self.mass if self.mass < 1 else before > 2  # rounding must not end at 1
        read = enough.logical_not().scatter(3, order.indices, ~enough)
        hidden = None if held.bias is None else (held.bias == NEVER).all(2, keepdim=True)
        return of_sets(read if hidden is None else read & ~hidden)
