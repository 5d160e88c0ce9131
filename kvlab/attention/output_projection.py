"""A layer's output projection by query head: what a value becomes on the way back to the hidden states."""

from __future__ import annotations

from torch import Tensor, nn

from kvlab.common.errors import UserError

NAMES = ("o_proj", "out_proj", "dense")


def output_weight(module: nn.Module, heads: int) -> Tensor:
    """(heads, d, hidden): the projection that each query head's output goes through, without bias or gate.

    Raises UserError for a module whose projection kvlab does not know.
    """
    found = (getattr(getattr(module, name, None), "weight", None) for name in NAMES)
    weight = next((each for each in found if isinstance(each, Tensor)), None)
    if weight is None or weight.dim() != 2 or weight.shape[1] % heads:
        raise UserError(f"kvlab does not know how {type(module).__name__} projects outputs; use another method.")
    return weight.unflatten(1, (heads, -1)).permute(1, 2, 0)
