"""Double Sparsity (arXiv 2408.07092): slots chosen by a few channels of their keys."""

import math

from pydantic import Field
from torch import Tensor

from kvlab.core.contract import Chosen, Held, Index, SparseShare, register_sparse_attention
from kvlab.core.methods.sparse_attention.selection import best, of_group, write_newest
from kvlab.core.stores.quantized_states import dense_states, states_at


@register_sparse_attention
class DoubleSparsity(SparseShare):
    """Reads the slots with the highest dot product over the label channels, the heaviest channels of a head's keys.

    A label cache holds those channels once more, in one piece. The paper calibrates the channels once a model, by the
    largest |q_c k_c| on a text. Here they are those with the largest mean |k_c| over a head's slots when the index is
    built: no file is needed, and the prompt's queries are not kept.
    """

    name = "double-sparsity"
    title = "Double Sparsity"
    paper = "https://arxiv.org/abs/2408.07092"

    channel_share: float = Field(0.125, gt=0, le=1, description="share of the channels in the label cache")

    def index(self, held: Held) -> Index:
        """`channels` (B, H, r) and `labels` (B, H, S, r) in the keys' dtype."""
        weight = held.float_keys().abs().sum(2)
        channels = weight.topk(max(1, math.ceil(self.channel_share * weight.shape[-1])), dim=-1).indices
        keys = dense_states(held.keys)
        return {"channels": channels, "labels": _at_channels(keys, channels)}

    def note(self, index: Index, held: Held) -> Index:
        new = _at_channels(states_at(held.keys, held.newest), index["channels"])
        return index | {"labels": write_newest(index["labels"], held, new)}

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        labels = index["labels"][:, :, : held.count]
        query_labels = _at_channels(query.float(), index["channels"])
        logits = held.with_bias(query_labels @ labels.float().transpose(-1, -2) * held.scaling)
        return best(self, held, of_group(logits), index_bytes=labels[0, 0].nbytes)


def _at_channels(states: Tensor, channels: Tensor) -> Tensor:
    """Channels (B, H, r) of states (B, H, S, d), (B, H, S, r)."""
    return states.gather(3, channels[:, :, None].expand(*states.shape[:3], channels.shape[-1]))
