"""transformers' layer interface for layers that answer for the whole text, however few slots they hold."""

from __future__ import annotations

from transformers.cache_utils import CacheLayerMixin


class UnboundedLayer(CacheLayerMixin):
    """A cache layer of unbounded length that cannot be rolled back; `get_seq_length` counts tokens, not slots."""

    is_sliding = False
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Sizes of the padding mask, which is indexed by tokens seen, not by slots."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Unbounded."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Raise NotImplementedError: evicted or merged slots cannot be restored."""
        if tokens_to_remove != 0:
            raise NotImplementedError("A compressed cache cannot be rolled back; assisted decoding is not supported.")
