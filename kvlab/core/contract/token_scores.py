"""Scores of tokens that all layers and heads share, made from the model's residual stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.core.contract.view import Slots

# States that differ by less than this share of their length, and changes by less than it of their mean, count as equal:
# more than float32 rounds in a pass, and far less than tokens change.
ROUNDING = 2.0**-16


@dataclass(frozen=True)
class ResidualRule:
    """How a scorer scores tokens by the changes of the residual stream from token to token.

    `depths` are shares of the model's layers after which the stream is read, ascending. The change of a token is the
    L2 distance of its state from that of the token before it in the text; the first token has 0, and so has one whose
    state differs by rounding only.

    `score(changes, real)` gives scores (B, q) float32 of q tokens, from the changes (B, depths, q, window) of each
    token, last, and of those before it; `real` (B, q, window) marks the ones that exist. It must not depend on others.
    `of_prompt`: the prompt's tokens are scored and count as tokens before; otherwise the text begins after them.
    """

    depths: tuple[float, ...]
    window: int
    score: Callable[[Tensor, Tensor], Tensor]
    of_prompt: bool = True


@dataclass(frozen=True)
class TokenScores:
    """Scores (B, q) float32 of the tokens at positions `first` (B,) and following, known since the pass that ended at
    logical length `end`; NaN where there is none."""

    score: Tensor
    first: Tensor
    end: int

    def placed(self, slots: Slots) -> Tensor:
        """`slots.score` (B, H, S) with the scores of these tokens."""
        count = self.score.shape[1]
        place = slots.position - self.first[:, None, None]
        found = self.score[:, None].expand(-1, place.shape[1], -1).gather(2, place.clamp(0, count - 1))
        return torch.where((place >= 0) & (place < count) & ~found.isnan(), found, slots.score)

    @property
    def known_to(self) -> Tensor:
        """The first position (B,) whose score is not known yet."""
        return self.first + self.score.shape[1]

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> TokenScores:
        """The same of selected or repeated rows."""
        return TokenScores(change(self.score), change(self.first), self.end)
