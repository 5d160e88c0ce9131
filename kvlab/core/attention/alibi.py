"""ALiBi: logits decrease by the query head's slope times the distance between query and key.

Distances use positions in the text, not in the table, so evicted slots leave gaps; a merged slot has its pivot's
position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvlab.core.attention.queries import family, text_config

FAMILIES = ("bloom", "mpt")  # families without a config flag


def uses_alibi(model: nn.Module) -> bool:
    """Whether the model uses ALiBi; such a model may have an unused rotary embedding."""
    return family(model) in FAMILIES or bool(getattr(text_config(model), "alibi", False))


@dataclass(frozen=True)
class Alibi:
    """ALiBi bias of one pass: q queries of H * G heads at S slots.

    transformers adds slope * key position, before logits are scaled (Falcon) or after (Bloom and MPT, whose slopes are
    given divided by the scaling). bfloat16 slopes are multiplied in bfloat16, as in Falcon. Here the query's own
    product is subtracted, which softmax cancels: exponential scores then do not grow with the text.
    """

    slopes: Tensor  # (B, H, G)
    slots: Tensor  # (B, H, S) positions
    queries: Tensor  # (B, H, q) positions

    def rows(self, first: int, last: int) -> Tensor:
        """Bias (B, H, G, last - first, S) float32, before scaling, of query rows `first` to `last`."""
        at_slots, at_queries = (
            (self.slopes[..., None] * position[:, :, None]).float()
            for position in (self.slots, self.queries[:, :, first:last])
        )
        return at_slots[..., None, :] - at_queries[..., None]


def query_positions(tokens_seen: Tensor, rows: int, row_valid: Tensor | None) -> Tensor:
    """Positions (B, rows) of a pass's queries; `tokens_seen` (B,) includes them; `row_valid` (B, rows)."""
    real = torch.ones(1, rows, device=tokens_seen.device) if row_valid is None else row_valid
    behind = real.long().flip(-1).cumsum(-1).flip(-1)
    return tokens_seen[:, None] - behind
