"""A text in one pass of the model while every cache layer takes it token by token, as though each had been decoded.

A layer goes through all tokens before the next one begins (`in_blocks`), and the rest of the model (projections,
feed-forward, logits) works on the whole text at once. The result is that of feeding token by token, merging included;
where H2O, LESS, CaM and D2O mask attention in one pass over the whole text, this is what they simulate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from kvlab.attention.layer_handoff import AttentionCall, offer
from kvlab.cache.cache import CompressedCache
from kvlab.cache.layers.blockwise import attend_in_blocks
from kvlab.cache.layers.compressed_layer import CompressedLayer


def works_one_by_one(cache: CompressedCache) -> bool:
    """Whether a layer of this cache needs nothing of other layers, of hidden states or of the rotation's changes."""
    settings, pipeline = cache.settings, cache.settings.pipeline
    apart = not (pipeline.waits or pipeline.saves_prefill or pipeline.score.needs_hidden_states)
    plain = all(type(layer) is CompressedLayer for layer in cache.compressed_layers())
    return apart and plain and settings.changing_rotary is None


@contextmanager
def one_by_one(cache: CompressedCache) -> Iterator[CompressedCache]:
    """`cache`, empty as yet, as the next pass fills it: every layer by itself, token by token."""
    layers = cache.layers
    cache.layers = [OneByOne(layer) if isinstance(layer, CompressedLayer) else layer for layer in layers]
    try:
        yield cache
    finally:
        cache.layers = layers


class OneByOne(CacheLayerMixin):
    """Stands for a compressed layer during one pass over a whole text."""

    is_sliding = False
    is_compileable = False

    def __init__(self, layer: CompressedLayer) -> None:
        super().__init__()
        self.layer = layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The layer itself will adopt the first token's type and device."""

    def get_seq_length(self) -> int:
        """Tokens seen so far: none."""
        return self.layer.get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """As the layer's."""
        return self.layer.get_mask_sizes(query_length)

    def get_max_length(self) -> int:
        """Unbounded."""
        return self.layer.get_max_length()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Nothing is appended yet; all states (B, H, q, d) go on to the attention function."""
        offer(self, key_states)
        return key_states, value_states

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Output (B, Hq, q, d): each token is appended, attends and is decided about before the next one comes."""
        return attend_in_blocks(self.layer, 1, query, key, value, call._replace(padding=None))
