"""MagicPIG (arXiv 2410.16179): slots sampled by locality-sensitive hashing, with importance weights."""

import math
from functools import lru_cache
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import Chosen, Held, Index, SparseAttention, SparseCapabilities, register_sparse_attention
from kvlab.core.methods.sparse_attention.selection import always, of_sets, write_newest
from kvlab.core.stores.quantized_states import dense_states, states_at

BLOCK = 1024  # slots hashed at a time
ID_BYTES = 4  # of a slot's number in a hash table
TINY = torch.finfo(torch.float32).tiny


@register_sparse_attention
class MagicPIG(SparseAttention):
    """Reads the slots whose hash collides with the query's in at least two of L tables, weighted by 1 / probability.

    A table's hash are the signs of K random projections (SimHash). A key at angle t to the query collides in a table
    with p^K, p = 1 - t / pi, and is sampled with u = 1 - (1 - p^K)^L - L p^K (1 - p^K)^(L - 1) (algorithm 1). Adding
    -log u to the sampled logits makes the normaliser unbiased over the random projections. Keys are centred by their
    mean when the index is built, which softmax cannot see; sinks and the newest tokens are read exactly. Bytes read
    from the tables are those of the numbers of all colliding slots.
    """

    name = "magicpig"
    title = "MagicPIG"
    paper = "https://arxiv.org/abs/2410.16179"
    acts_on = "samples"
    exact_at = {"recent": 2**20}
    capabilities: ClassVar[SparseCapabilities] = SparseCapabilities(samples=True, per_query_head=True)

    bits: int = Field(10, ge=1, le=15, description="random projections of a table, K")
    tables: int = Field(150, ge=2, le=4096, description="hash tables, L")
    sinks: int = Field(4, ge=0, description="first tokens that are always read")
    recent: int = Field(64, ge=0, description="newest tokens that are always read")

    def index(self, held: Held) -> Index:
        """`mean` key (B, H, 1, d) and `codes` (B, H, S, L)."""
        keys = held.float_keys()
        mean = keys.sum(2, keepdim=True) / held.live().clamp_min(1)[..., None, None]
        return {"mean": mean, "codes": self._codes(dense_states(held.keys).float() - mean, held)}

    def note(self, index: Index, held: Held) -> Index:
        new = self._codes(states_at(held.keys, held.newest).float() - index["mean"], held)
        return index | {"codes": write_newest(index["codes"], held, new)}

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        query = query.float()
        codes = index["codes"][:, :, : held.count]
        query_codes = self._codes(query, held)
        collisions = torch.stack(
            [(codes == query_codes[:, :, member, None]).sum(-1) for member in range(query.shape[2])], 2
        ).masked_fill(~held.valid()[:, :, None], 0)
        exact = always(held, self.sinks, self.recent)[:, :, None]
        chosen = of_sets((collisions >= 2) | exact)
        assert chosen.log_weight is not None
        keys = states_at(held.keys, chosen.slots.flatten(2)).unflatten(2, chosen.slots.shape[2:])
        # log u of the chosen keys (algorithm 1); 1 - u cancels in float32
        centred = keys.float() - index["mean"][:, :, None]
        cosine = torch.cosine_similarity(query[:, :, :, None], centred, dim=-1).clamp(-1, 1)
        in_a_table = ((1 - cosine.acos() / math.pi) ** self.bits).double()
        none = (1 - in_a_table) ** self.tables
        one = self.tables * in_a_table * (1 - in_a_table) ** (self.tables - 1)
        weight = -(1 - none - one).clamp_min(TINY).log().float()
        weight = weight.masked_fill(exact.expand_as(collisions).gather(3, chosen.slots), 0.0)
        numbers = ID_BYTES * collisions.sum((2, 3))
        return Chosen(chosen.slots, chosen.log_weight + weight, numbers)

    def _codes(self, states: Tensor, held: Held) -> Tensor:
        """Hashes (B, H, n, L) int16 of states (B, H, n, d) float32."""
        planes = _planes(states.shape[-1], self.bits * self.tables, (held.seed, held.layer), states.device)
        powers = 2 ** torch.arange(self.bits, device=states.device)
        blocks = [
            ((part @ planes > 0).unflatten(-1, (self.tables, self.bits)) * powers).sum(-1).to(torch.int16)
            for part in states.split(BLOCK, 2)
        ]
        return torch.cat(blocks, 2)


@lru_cache(maxsize=256)
def _planes(width: int, count: int, seed: tuple[int, int], device: torch.device) -> Tensor:
    """Normals (width, count) of random hyperplanes, one set for all heads of a layer."""
    draw = torch.Generator().manual_seed(seed[0] * 1_000_003 + seed[1])
    return torch.randn(width, count, generator=draw).to(device)
