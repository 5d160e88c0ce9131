"""What a query's attention is divided by in a model with learned sinks (gpt-oss): a logit more, which has no slot."""

from __future__ import annotations

import torch
from torch import Tensor


def log_total(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """(B, H, G, r, 1): log-sum-exp of logits (B, H, G, r, S), log mass added, and of the sinks (B, H, G) if any."""
    total = torch.logsumexp(logits, -1, keepdim=True)
    return total if sinks is None else torch.logaddexp(total, sinks.float()[..., None, None])
