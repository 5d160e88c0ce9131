"""ALiBi: a logit loses as much as its query head's slope times the distance between query and key.

A slot counts from where its token stood in the text, not from its place in the table, so what was dropped leaves gaps;
a merged slot stands where its pivot stood.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvlab.attention.text_config import family, text_config

FAMILIES = ("bloom", "mpt")  # those without a flag in their config


def uses_alibi(model: nn.Module) -> bool:
    """Whether the model tells distances by ALiBi; it may hold a rotary embedding that it never uses."""
    return family(model) in FAMILIES or bool(getattr(text_config(model), "alibi", False))


@dataclass(frozen=True)
class Alibi:
    """What a model with ALiBi adds to the logits of one pass: q queries of H * G heads at S slots.

    transformers adds slope * position of the key, before logits are scaled (Falcon) or after (Bloom and MPT, whose
    slopes are given divided by the scaling). Slopes of bfloat16 are multiplied in it, as Falcon's are. Here the query's
    own product is taken off, which no softmax sees: exp scores then do not grow with the text.
    """

    slopes: Tensor  # (B, H, G)
    slots: Tensor  # (B, H, S) positions
    queries: Tensor  # (B, H, q) positions

    def rows(self, first: int, last: int) -> Tensor:
        """(B, H, G, last - first, S) float32, before scaling, of the queries from row `first` to row `last`."""
        return self._products(self.slots)[..., None, :] - self._products(self.queries[:, :, first:last])[..., None]

    def of_last(self, position: Tensor) -> Alibi:
        """The same for the last query alone and slots at `position` (B, H, S)."""
        return Alibi(self.slopes, position, self.queries[:, :, -1:])

    def at(self, columns: slice) -> Alibi:
        """The same at some of the slots."""
        return Alibi(self.slopes, self.slots[:, :, columns], self.queries)

    def up_to(self, tokens: int, rows: int) -> Alibi:
        """The same for the first `tokens` slots and `rows` queries."""
        return Alibi(self.slopes, self.slots[:, :, :tokens], self.queries[:, :, :rows])

    def _products(self, position: Tensor) -> Tensor:
        return (self.slopes[..., None] * position[:, :, None]).float()


def query_positions(tokens_seen: Tensor, rows: int, row_valid: Tensor | None) -> Tensor:
    """(B, rows): positions of a pass's queries, which `tokens_seen` (B,) counts already; `row_valid` (B, rows)."""
    real = torch.ones(1, rows, device=tokens_seen.device) if row_valid is None else row_valid
    behind = real.long().flip(-1).cumsum(-1).flip(-1)
    return tokens_seen[:, None] - behind
