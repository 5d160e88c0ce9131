"""The attention backend: it catches states as they are written, and attends to kvlab's slots instead of pages."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from kvlab.extras.vllm.page_states import PageStates
from kvlab.extras.vllm.session import Session


class SlotBackend(CPUAttentionBackend):
    """vLLM's CPU backend with another implementation."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """The implementation that vLLM creates for each layer."""
        return SlotAttention


class SlotAttention(CPUAttentionBackendImpl):
    """Attention of one layer; vLLM's own where the session has no slots for a request."""

    pages: PageStates | None = None

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write to vLLM's pages, and note the same states by page slot."""
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        if Session.current is None:
            return
        slots = kv_cache.shape[0] * kv_cache.shape[2]
        if self.pages is None or len(self.pages.keys) != slots:
            self.pages = PageStates.empty(slots, key, value)
        self.pages.write(slot_mapping.long(), key, value)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Output (tokens, Hq, d) for all requests of the step."""
        session = Session.current
        pages = self.pages
        given = layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
        if session is None or pages is None or attn_metadata is None:
            return super().forward(*given)
        tokens = attn_metadata.num_actual_tokens
        if not session.choice.keep_queries:
            pages.queries = None
        else:
            pages.write_queries(attn_metadata.slot_mapping[:tokens].long(), query[:tokens])
        spans = session.spans(attn_metadata, kv_cache.shape[2])
        if not all(span.is_covered for span in spans):
            super().forward(*given)
        index = int(layer.layer_name.split("layers.")[1].split(".")[0])
        for span in spans:
            session.attend(index, span, query, pages, self.scale, self.logits_soft_cap or None, output)
        return output
