"""RetroInfer (arXiv 2505.02922): clusters of keys, of which few are read and others estimated by their centroids."""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, pad

from kvlab.core.contract import NEVER
from kvlab.core.contract import sparse_attention as sparse
from kvlab.core.errors import UserError
from kvlab.core.methods.sparse_attention.selection import always, means_of, of_group, of_sets, spread_rows, write_newest
from kvlab.core.stores.quantized_states import dense_states

STEADY = -1  # the cluster of slots that are always read


@sparse.register_sparse_attention
class RetroInfer(sparse.SparseShare):
    """Reads the clusters whose centroids match the query best, and lets centroids stand for the next ones.

    Three zones: steady (sinks, the newest tokens, and all that came since the last clustering), read exactly; the
    retrieved share of the clusters, read exactly; and the next clusters, estimated: their slots count with exp(q C)
    each, a lower bound of their mean by Jensen's inequality, and the mean of their values. The rest is left out.
    Clusters are those of spherical k-means on keys minus their mean, within segments of the text, 16 slots a cluster on
    average; after 1,024 new tokens they are made anew. `share` is that of the clusters retrieved; the paper retrieves
    1.8 % and estimates 23.2 %.
    """

    name = "retroinfer"
    title = "RetroInfer"
    paper = "https://arxiv.org/abs/2505.02922"
    acts_on = "clusters"
    capabilities: ClassVar[sparse.SparseCapabilities] = sparse.SparseCapabilities(estimates=True)

    estimate: float = Field(0.232, ge=0, le=1, description="share of the clusters that are estimated")
    cluster: int = Field(16, ge=1, le=4096, description="mean slots of a cluster")
    segment: int = Field(8192, ge=16, description="slots that are clustered together")
    rounds: int = Field(10, ge=1, le=100, description="iterations of k-means")
    update: int = Field(1024, ge=1, description="new tokens after which clusters are made anew")
    sinks: int = Field(4, ge=0, description="first tokens that are always read")
    recent: int = Field(64, ge=0, description="newest tokens that are always read")

    def index(self, held: sparse.Held) -> sparse.Index:
        """`member` (B, H, S, 1) int32, and of each cluster `keys`, `values` (B, H, C, d) and log `mass` (B, H, C).

        `built` (B, H, S, 0) has as many slots as the table had. Raises UserError where query heads have biases of their
        own, which a centroid cannot have.
        """
        if held.places_count or (held.bias is not None and held.bias.shape[2] > 1):
            raise UserError(
                "read=retroinfer estimates slots by the mean of their keys, which has no place for ALiBi or for masses "
                "of single query heads: use other sparse attention, or another model or method."
            )
        steady = always(held, self.sinks, self.recent) | ~held.valid()
        weight = (~steady).float() if held.bias is None else held.bias[:, :, 0].exp().masked_fill(steady, 0.0)
        keys = held.float_keys()
        values = dense_states(held.values).float()
        # The cluster (B, H, S) of each slot, segment by segment.
        slots = keys.shape[2]
        size = min(self.segment, slots)
        valid = ~steady
        mean = (keys * valid[..., None]).sum(2, keepdim=True) / valid.sum(-1).clamp_min(1)[..., None, None]
        padding = -slots % size
        parts = pad(normalize(keys - mean, dim=-1), (0, 0, 0, padding)).unflatten(2, (-1, size))
        real = pad(valid, (0, padding)).unflatten(2, (-1, size))
        most = math.ceil(size / self.cluster)
        # A row has as many clusters as it would have alone, whatever the length of the table.
        number = (real.sum(-1, keepdim=True) / self.cluster).ceil().long()
        unused = torch.arange(most, device=keys.device) >= number
        centres = spread_rows(parts, real, most, number)
        for _ in range(self.rounds):
            means, total = means_of(parts, _most_alike(parts, centres, unused), real.float(), most)
            centres = torch.where(total[..., None] > 0, normalize(means, dim=-1), centres)
        cluster = _most_alike(parts, centres, unused)
        cluster = cluster + most * torch.arange(cluster.shape[2], device=cluster.device)[:, None]
        member = cluster.flatten(2)[:, :, :slots]
        count = most * parts.shape[2]
        centroids, mass = means_of(keys, member, weight, count)
        return {
            "member": member.masked_fill(steady, STEADY)[..., None].int(),
            "keys": centroids.to(held.keys.dtype),
            "values": means_of(values, member, weight, count)[0].to(held.values.dtype),
            "mass": mass.log(),
            "built": keys.new_empty(*keys.shape[:3], 0),
        }

    def note(self, index: sparse.Index, held: sparse.Held) -> sparse.Index:
        if held.count - index["built"].shape[2] >= self.update:
            return self.index(held)
        new = index["member"].new_full((*held.newest.shape, 1), STEADY)
        return index | {"member": write_newest(index["member"], held, new)}

    def choose(self, query: Tensor, held: sparse.Held, index: sparse.Index) -> sparse.Chosen:
        query = query.float()
        keys = index["keys"].float()
        mass = index["mass"]
        logits = query @ keys.transpose(-1, -2) * held.scaling
        if held.softcap is not None:
            logits = held.softcap * torch.tanh(logits / held.softcap)
        filled = mass > NEVER
        score = of_group(logits.masked_fill(~filled[:, :, None], NEVER))[:, :, 0]
        rank = score.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        number = filled.sum(-1, keepdim=True)
        most = (self.share * number - 1e-9).ceil().long()
        retrieved = (rank < most) & filled
        near = (rank >= most) & (rank < most + (self.estimate * number - 1e-9).ceil().long()) & filled
        member = index["member"][:, :, : held.count, 0].long()
        read = retrieved.gather(2, member.clamp_min(0)) & (member != STEADY) | (member == STEADY) & held.valid()
        of_near = mass.masked_fill(~near, NEVER)[:, :, None]
        chosen = of_sets(read[:, :, None], index_bytes=keys.shape[2] * (2 * keys.shape[3] + 1) * 4)
        estimate = sparse.Estimate(logits + of_near, index["values"].float())
        return sparse.Chosen(chosen.slots, chosen.log_weight, chosen.index_bytes, estimate)


def _most_alike(states: Tensor, centroids: Tensor, unused: Tensor) -> Tensor:
    """Number (..., S) of the centroid (..., C, d) with the largest cosine to each unit vector (..., S, d)."""
    return (states @ centroids.transpose(-1, -2)).masked_fill(unused[..., None, :], -torch.inf).argmax(-1)
