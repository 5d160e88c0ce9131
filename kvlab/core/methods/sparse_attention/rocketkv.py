"""RocketKV's second stage (arXiv 2502.14051): pages chosen by the query's largest channels."""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.contract import Chosen, Held, Index, SparseCapabilities, SparseShare, register_sparse_attention
from kvlab.core.methods.sparse_attention import selection
from kvlab.core.stores.quantized_states import states_at

TINY = torch.finfo(torch.float32).tiny


@register_sparse_attention
class RocketKV(SparseShare):
    """Reads the pages with the highest approximate logits, of the query's largest channels alone.

    What it finds depends on a token's place in its page (`kvlab table --of phase`).

    Of the maxima and minima of a page (as in Quest) a step reads those of the r channels with the largest sum of |q|
    over the group: the maximum where the group's queries sum to a positive number, else the minimum (hybrid sparse
    attention). Logits are divided by the root of the share of |q| in those channels, as in the authors' code
    (rocket.py). The first stage evicts as SnapKV does: `snapkv:preset=rocketkv`. Pages are of 4 slots, as in
    TensorRT-LLM (RocketSparseAttentionConfig); its first version took 76 of 128 channels, now it takes all.
    """

    name = "rocketkv"
    title = "RocketKV, second stage"
    paper = "https://arxiv.org/abs/2502.14051"
    acts_on = "pages"
    capabilities: ClassVar[SparseCapabilities] = SparseCapabilities(summarises=True)

    page: int = Field(4, ge=1, le=4096, description="slots of a page")
    channel_share: float = Field(0.6, gt=0, le=1, description="share of the channels that are compared")

    def index(self, held: Held) -> Index:
        """`channels` (B, H, 2 d, pages): maxima, then minima, in the keys' dtype; a channel lies in one piece."""
        return {"channels": selection.all_bounds(held, self.page).transpose(2, 3).contiguous()}

    def note(self, index: Index, held: Held) -> Index:
        channels, (newest_page, new) = index["channels"], selection.page_of_newest(held, self.page)
        missing = -(-held.count // self.page) - channels.shape[3]
        channels = pad(channels, (0, missing + selection.SLACK)) if missing > 0 else channels
        new = new.transpose(2, 3)
        return {"channels": channels.scatter_(3, newest_page[:, :, None].expand_as(new), new)}

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        pages = -(-held.count // self.page)
        width = query.shape[-1]
        query = query.float()
        channels = query.abs().sum(2).topk(math.ceil(self.channel_share * width), dim=-1).indices
        positive = query.sum(2).gather(2, channels) > 0
        column = channels + (~positive) * width
        read = states_at(index["channels"], column)[..., :pages]
        query_channels = query.gather(3, channels[:, :, None].expand(-1, -1, query.shape[2], -1))
        # as in the authors' code: a temperature for the part of |q| that is compared, which weighs the group's heads
        part = query_channels.abs().sum(-1, keepdim=True) / query.abs().sum(-1, keepdim=True).clamp_min(TINY)
        logits = query_channels @ read.float() * held.scaling / part.clamp_min(TINY).sqrt()
        score = selection.of_group(selection.page_logits(logits, held, self.page))
        return selection.best_pages(self, held, score, self.page, 1, read[0, 0].nbytes)
