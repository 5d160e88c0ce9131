"""Linear weights in bfloat16 under float32 activations: a decode step moves half the bytes of these layers.

Keys, values, scores and softmax keep their type. A product has its inputs and result rounded to bfloat16 and is summed
in float32. Embedding, norms and weights that are in no `nn.Linear` stay as they are.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvlab.core import UserError, asset_path

TEXT = "prompts/haystack/alice_in_wonderland.txt"
TOKENS = 256  # of that text, on which the loss by rounding is measured
CHARACTERS = 8 * TOKENS  # enough text for as many tokens


class Bfloat16Linear(nn.Linear):
    """A layer whose weight is bfloat16; on a CPU it lies in oneDNN's order, which one row reads twice as fast."""

    def forward(self, input: Tensor) -> Tensor:
        rounded = input.bfloat16()
        if self.weight.is_mkldnn:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rounded, self.weight, None, "none", [], "")
        else:
            product = functional.linear(rounded, self.weight)
        product = product.to(input.dtype)
        return product if self.bias is None else product + self.bias


def check_bfloat16(device: torch.device, placement: str) -> None:
    """Raise UserError where weights in bf16 would be slower than float32, or are on several devices."""
    if placement == "auto":
        raise UserError("Weights in bf16 need one device: leave placement auto out, or use --dtype bfloat16.")
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device.type == "cpu" and not fast:
        raise UserError(
            "This processor has no bfloat16 instructions (AVX-512 BF16 or AMX), so weights in bf16 would be slower "
            "than float32: leave --weights out."
        )


def round_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Make every `nn.Linear` a `Bfloat16Linear`, in place.

    Returns the mean KL of next tokens, nats, from the weights as they were to these: full cache, `TOKENS` tokens of a
    book; None if no weight changed its type. Layers that keep their weight in other forms are left alone. Raises
    UserError for float16.
    """
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    if any(layer.weight.dtype == torch.float16 for layer in layers):
        raise UserError("Weights in bf16 are rounded from float32: add --dtype float32.")
    layers = [layer for layer in layers if layer.weight.dtype == torch.float32]
    if not layers:
        return None
    text = asset_path(TEXT).read_text(encoding="utf-8")[:CHARACTERS]
    ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][:, :TOKENS].to(layers[0].weight.device)
    before = _next_tokens(model, ids)
    for layer in layers:
        weight: Any = layer.weight.detach().bfloat16()
        if weight.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        layer.__class__ = Bfloat16Linear
        layer.weight = nn.Parameter(weight, requires_grad=False)
    after = _next_tokens(model, ids)
    return float((before.exp() * (before - after)).sum(-1).mean())


def _next_tokens(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Log probabilities (T, vocabulary), float32, without a cache."""
    with torch.inference_mode():
        logits: Tensor = model(ids, use_cache=False).logits[0]
    return logits.float().log_softmax(-1)
