"""Quest (arXiv 2406.10774): pages of 16 slots, chosen by an upper bound of their logits."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import Chosen, Held, Index, SparseCapabilities, SparseShare, register_sparse_attention
from kvlab.core.methods.sparse_attention import selection


@register_sparse_attention
class Quest(SparseShare):
    """Reads the pages whose keys could match the query best.

    What it finds depends on a token's place in its page (`kvlab table --of phase`).

    A page keeps the minimum and the maximum of each channel of its keys. sum_c max(q_c min_c, q_c max_c) bounds the
    logit of each of its keys (algorithm 1). Layers 0 and 1 read everything, because they attend broadly, and at least
    three pages are read (evaluation/quest_attention.py). A page is 16 consecutive slots of the table; evictions while
    decoding leave holes, and a new token may fill one.
    """

    name = "quest"
    title = "Quest"
    paper = "https://arxiv.org/abs/2406.10774"
    acts_on = "pages"
    capabilities: ClassVar[SparseCapabilities] = SparseCapabilities(summarises=True)

    page: int = Field(16, ge=1, le=4096, description="slots of a page")
    least: int = Field(3, ge=1, description="pages that are read at least")
    dense_layers: int = Field(2, ge=0, description="first layers that read everything")

    def index(self, held: Held) -> Index:
        """`bounds` (B, H, pages, 2 d): maxima, then minima, in the keys' dtype."""
        return {"bounds": selection.all_bounds(held, self.page)}

    def note(self, index: Index, held: Held) -> Index:
        # Those of the newest token's page are taken again from its keys, so that they stay tight.
        bounds = selection.room(index["bounds"], -(-held.count // self.page), selection.SPARE_PAGES)
        newest_page, new = selection.page_of_newest(held, self.page)
        return {"bounds": bounds.scatter_(2, newest_page[..., None].expand_as(new), new)}

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        pages = -(-held.count // self.page)
        bounds = index["bounds"][:, :, :pages]
        query = query.float()
        # Upper bounds (B, H, G, pages) of the logits at each page.
        both = torch.cat([query.clamp_min(0.0), query.clamp_max(0.0)], -1)
        logits = both @ bounds.float().transpose(-1, -2) * held.scaling
        score = selection.of_group(selection.page_logits(logits, held, self.page))
        return selection.best_pages(self, held, score, self.page, self.least, bounds[0, 0].nbytes)
