"""ShadowKV (arXiv 2410.21465): chunks chosen by the means of their keys, which are read at low rank."""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, pad

from kvlab.core.contract import NEVER, is_valid
from kvlab.core.contract import sparse_attention as sparse
from kvlab.core.methods.sparse_attention.selection import always, of_sets, page_logits, room, write_newest
from kvlab.core.stores.quantized_states import states_at


@sparse.register_sparse_attention
class ShadowKV(sparse.SparseShare):
    """Reads the chunks with the highest attention to their landmarks, with keys restored from a low rank.

    What it finds depends on a token's place in its chunk (`kvlab table --of phase`).

    A landmark is the mean of a chunk's rotated keys. Before rotation the keys of all heads together are close to a
    matrix of low rank: a token has `rank_share` of the layer's key width in numbers (160 of 1,024 in the paper), from
    which the keys of the chosen slots are computed, and rotated to their positions. Values are read as they are. Read
    exactly at every step: the newest chunks of the prompt, all tokens after it, and the chunks with a key least like
    its landmark (outliers, by cosine; 48 of 16,384 chunks in the paper). `share` is that of the other chunks.

    Scores of a group's query heads: the largest of their softmaxes over the landmarks, as in the authors' code. The
    table keeps its own keys beside those of low rank, because sparse attention changes no slot.
    """

    name = "shadowkv"
    title = "ShadowKV"
    paper = "https://arxiv.org/abs/2410.21465"
    acts_on = "chunks"
    exact_at = {"share": 1.0, "rank_share": 1.0}
    capabilities: ClassVar[sparse.SparseCapabilities] = sparse.SparseCapabilities(
        replaces_keys=True, across_heads=True, summarises=True
    )

    rank_share: float = Field(0.15625, gt=0, le=1, description="rank of the keys, as a share of the layer's key width")
    chunk: int = Field(8, ge=1, le=4096, description="slots of a chunk")
    outliers: float = Field(0.003, ge=0, le=1, description="share of the chunks that are read as outliers")
    recent: int = Field(32, ge=0, description="newest tokens of the prompt that are always read, with their chunks")

    def index(self, held: sparse.Held) -> sparse.Index:
        """`landmarks` (B, H, chunks, d), `exact` (B, H, S, 1) slots that are always read, as they are, and the factors.

        `low` (B, H, S, r / H): a slot's r numbers, of which each head holds a part, so that they follow the table;
        `basis` (B, H, r, d).
        """
        near = self._cut(always(held, 0, self.recent)).any(-1)
        exact = near.repeat_interleave(self.chunk, -1)[..., : held.count] & held.valid()
        # Means (B, H, chunks, d) of the other keys; 0 in a chunk without one.
        marks = self._cut(held.valid() & ~exact).float()
        cut_keys = pad(held.float_keys(), (0, 0, 0, -held.count % self.chunk)).unflatten(2, (-1, self.chunk))
        landmarks = (cut_keys * marks[..., None]).sum(3) / marks.sum(3, keepdim=True).clamp_min(1)
        # Slots (B, H, S) of the chunks with the key least like its landmark, of those not read in any case.
        taken = self._cut(held.valid() & ~exact)
        alike = cosine_similarity(cut_keys, landmarks[:, :, :, None], dim=-1).masked_fill(~taken, math.inf).amin(-1)
        number = (self.outliers * taken.any(-1).sum(-1, keepdim=True) - 1e-9).ceil()
        out = (alike.argsort(dim=-1, stable=True).argsort(-1) < number) & taken.any(-1)
        exact = exact | (out.repeat_interleave(self.chunk, -1)[..., : held.count] & held.valid())
        # The keys before rotation, projected to the r largest directions of all heads together.
        keys = held.float_keys()
        if held.rotary is not None:
            keys = held.rotary.turn(keys, -held.position.masked_fill(~held.valid(), 0))
        heads = keys.shape[1]
        width = keys.shape[3]
        joint = keys.transpose(1, 2).flatten(2)  # (B, S, H d)
        rank = math.ceil(self.rank_share * heads * width - 1e-9)
        directions = torch.linalg.eigh(joint.transpose(1, 2) @ joint).eigenvectors[..., -rank:]
        directions = pad(directions, (0, -rank % heads))
        low = (joint @ directions).unflatten(2, (heads, -1)).transpose(1, 2).contiguous()
        basis = directions.transpose(1, 2).unflatten(2, (heads, width)).transpose(1, 2).contiguous()
        kind = held.keys.dtype
        return {
            "landmarks": landmarks.to(kind),
            "exact": exact[..., None],
            "low": low.to(kind),
            "basis": basis.to(kind),
        }

    def note(self, index: sparse.Index, held: sparse.Held) -> sparse.Index:
        exact = write_newest(index["exact"], held, torch.ones_like(held.newest[..., None], dtype=torch.bool))
        low = write_newest(index["low"], held, torch.zeros_like(index["low"][:, :, :1]))
        # `landmarks` after a token was written: that of its chunk is the mean of what else the chunk holds.
        landmarks = index["landmarks"]
        landmarks = room(landmarks, -(-held.count // self.chunk))
        newest_chunk = held.newest // self.chunk
        slots = newest_chunk * self.chunk + torch.arange(self.chunk, device=newest_chunk.device)
        inside = slots.clamp_max(held.count - 1)
        taken = is_valid(held.position.gather(2, inside)) & ~exact[..., 0].gather(2, inside) & (slots < held.count)
        keys = states_at(held.keys, inside).float().masked_fill(~taken[..., None], 0.0)
        mean = keys.sum(2, keepdim=True) / taken.sum(2, keepdim=True)[..., None].clamp_min(1)
        return index | {
            "exact": exact,
            "low": low,
            "landmarks": landmarks.scatter(2, newest_chunk[..., None].expand_as(mean), mean.to(landmarks.dtype)),
        }

    def choose(self, query: Tensor, held: sparse.Held, index: sparse.Index) -> sparse.Chosen:
        chunks = -(-held.count // self.chunk)
        landmarks = index["landmarks"]
        landmarks = pad(landmarks, (0, 0, 0, max(chunks - landmarks.shape[2], 0)))[:, :, :chunks]
        exact = index["exact"][:, :, : held.count, 0] & held.valid()
        there = self._cut(held.valid() & ~exact).any(-1)
        logits = query.float() @ landmarks.float().transpose(-1, -2) * held.scaling
        logits = page_logits(logits, held, self.chunk).masked_fill(~there[:, :, None], NEVER)
        score = (logits - logits.logsumexp(-1, keepdim=True)).nan_to_num(nan=NEVER).amax(2)
        rank = score.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        most = (self.share * there.sum(-1, keepdim=True) - 1e-9).ceil().long()
        best = ((rank < most) & there).repeat_interleave(self.chunk, -1)[..., : held.count]
        read = exact | best & held.valid()
        chosen = of_sets(read[:, :, None])
        # Keys (B, H, k, d) of the chosen slots: as they are where `exact`, else from their low rank.
        slots = chosen.slots[:, :, 0]
        joint = index["low"].transpose(1, 2).flatten(2).float()  # (B, S, r)
        place = slots.flatten(1)[..., None].expand(-1, -1, joint.shape[2])
        keys = joint.gather(1, place).unflatten(1, slots.shape[1:]) @ index["basis"].float()
        if held.rotary is not None:
            keys = held.rotary.turn(keys, held.position.gather(2, slots).clamp_min(0))
        as_they_are = exact.gather(2, slots)[..., None]
        keys = torch.where(as_they_are, states_at(held.keys, slots).float(), keys)
        size = held.keys.dtype.itemsize
        numbers = index["basis"].shape[2] - query.shape[-1]  # of a slot at low rank, in place of its key
        size_of_low = (read & ~exact).sum(-1) * numbers * size
        fixed = (landmarks[0, 0].numel() + index["basis"][0, 0].numel()) * size
        return sparse.Chosen(chosen.slots, chosen.log_weight, size_of_low + fixed, keys=keys[:, :, None])

    def _cut(self, marks: Tensor) -> Tensor:
        """(B, H, chunks, chunk) of marks (B, H, S) bool."""
        return pad(marks, (0, -marks.shape[2] % self.chunk)).unflatten(2, (-1, self.chunk))
