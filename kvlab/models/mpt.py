"""Route MPT's inline attention with ALiBi through the attention interface.

Like Bloom it adds the bias after scaling. Its model converts the causal mask to booleans before checking that there is
one, so passes without padding get a mask of ones.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.models.mpt.modeling_mpt import MptAttention, MptModel, build_mpt_alibi_tensor

_GIVEN = "_kvlab_gives_a_mask"


class SlotMptAttention(MptAttention):
    """The same projections, with the registered attention function in between."""

    config: Any  # set by `kvlab.models.families.prepare`: the original has none

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_bias: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        fused = self.Wqkv(hidden_states)
        if self.clip_qkv:
            fused = fused.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in fused.chunk(3, -1))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = AttentionInterface()[self.config._attn_implementation]
        scaling = self.softmax_scale
        output, _ = attend(
            self, query, key, value, attention_mask, scaling=scaling, slopes=self.slopes_on(query.device)
        )
        return self.out_proj(output.flatten(2)), None

    @property
    def slopes(self) -> Tensor:
        return self.slopes_on(self.out_proj.weight.device)

    def slopes_on(self, device: torch.device) -> Tensor:
        """Change of each query head's logits per position, (Hq,), before scaling."""
        assert self.softmax_scale is not None
        return _slopes(self.n_heads, device) / self.softmax_scale


@lru_cache
def _slopes(num_heads: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # also used by passes with gradients
        last = build_mpt_alibi_tensor(num_heads, 2, device=device)[:, 0]  # of positions -1 and 0
        return (last[:, 1] - last[:, 0]).float()


def always_give_a_mask(model: nn.Module) -> None:
    """Give every pass a padding mask (idempotent)."""
    for module in model.modules():
        if isinstance(module, MptModel) and not hasattr(module, _GIVEN):
            module.register_forward_pre_hook(_with_mask, with_kwargs=True)
            setattr(module, _GIVEN, True)


def _with_mask(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if named.get("attention_mask") is not None or len(given) > 2:
        return None
    ids = given[0] if given else named.get("input_ids")
    ids = named["inputs_embeds"][..., 0] if ids is None else ids
    cache = given[1] if len(given) > 1 else named.get("past_key_values")
    before = 0 if cache is None else cache.get_seq_length()
    ones = torch.ones(ids.shape[0], before + ids.shape[1], dtype=torch.int64, device=ids.device)
    return given, named | {"attention_mask": ones}
