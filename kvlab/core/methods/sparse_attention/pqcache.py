"""PQCache (arXiv 2407.12820): slots chosen by product-quantised keys."""

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import NEVER, Chosen, Held, Index, SparseShare, register_sparse_attention
from kvlab.core.errors import UserError
from kvlab.core.methods.sparse_attention.selection import always, best, k_means, nearest, of_group, write_newest
from kvlab.core.stores.quantized_states import states_at


@register_sparse_attention
class PQCache(SparseShare):
    """Reads the slots with the highest product of the query and their quantised keys.

    A key is cut into m parts, and each part is one of 2^b centroids, found by k-means over the head's keys when the
    index is built, right after the prompt. A step adds m entries of tables of the query's products. The first and the
    newest tokens are always read. m = 2 and b = 6 are the settings of the authors' scripts (n_subvec_per_head,
    n_subbits); later tokens get the nearest centroids.
    """

    name = "pqcache"
    title = "PQCache"
    paper = "https://arxiv.org/abs/2407.12820"

    parts: int = Field(2, ge=1, le=64, description="parts that a key is cut into")
    bits: int = Field(6, ge=1, le=8, description="bits of a part's centroid")
    rounds: int = Field(10, ge=1, le=100, description="iterations of k-means")
    sinks: int = Field(4, ge=0, description="first tokens that are always read")
    recent: int = Field(16, ge=0, description="newest tokens that are always read")

    def index(self, held: Held) -> Index:
        """`centroids` (B, H, m, 2^b, d / m) float32, `codes` (B, H, S, m). Raises UserError if m does not divide d."""
        keys = self._cut(held.float_keys())
        valid = held.valid()[:, :, None].expand(keys.shape[:-1])
        centroids, codes = k_means(keys, valid, 2**self.bits, self.rounds)
        return {"centroids": centroids, "codes": codes.transpose(2, 3).to(torch.uint8)}

    def note(self, index: Index, held: Held) -> Index:
        new = nearest(self._cut(states_at(held.keys, held.newest).float()), index["centroids"])
        return index | {"codes": write_newest(index["codes"], held, new.transpose(2, 3).to(torch.uint8))}

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        centroids = index["centroids"]
        codes = index["codes"][:, :, : held.count]
        table = self._cut(query.float()) @ centroids.transpose(-1, -2)  # (B, H, m, G, 2^b)
        place = codes.transpose(2, 3)[:, :, :, None].long().expand(*table.shape[:4], -1)
        logits = held.with_bias(table.gather(4, place).sum(2) * held.scaling)
        size = codes[0, 0].nbytes + centroids[0, 0].nbytes
        kept = always(held, self.sinks, self.recent)
        # heads of a group are compared by their attention among the candidates, as in the authors' code
        score = of_group(logits.masked_fill(kept[:, :, None], NEVER)).nan_to_num(nan=NEVER)
        return best(self, held, score, kept, size)

    def _cut(self, states: Tensor) -> Tensor:
        """(B, H, m, n, d / m) of states (B, H, n, d)."""
        if states.shape[-1] % self.parts:
            raise UserError(
                f"read=pqcache cuts keys of width {states.shape[-1]} into {self.parts} unequal parts: choose a number "
                "of parts that divides the width."
            )
        return states.unflatten(-1, (self.parts, -1)).transpose(2, 3)
