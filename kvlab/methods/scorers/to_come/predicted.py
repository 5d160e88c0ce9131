"""What a rehearsal would have said, predicted from hidden states alone (KVzap)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvlab.methods.score_heads import ScoreHead, untrained
from kvlab.methods.view import Seen, Slots

UNTRAINED = "untrained"


@dataclass(frozen=True)
class PredictedScore:
    """Score_j = what a small network of the layer makes of token j's hidden state: the log of its rehearsal score.

    `heads` names a file of `kvlab fit --method kvzap` (`mini`: the shipped one; `untrained`: random numbers), of which
    `known` holds the network of each model layer.
    """

    heads: str = "mini"
    known: Mapping[int, ScoreHead] = field(default_factory=dict)
    every_step: bool = False
    needs_hidden_states: bool = True
    state: Mapping[str, float] = field(default_factory=dict)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 on the first prefill; later tokens keep score 0."""
        if not first:
            return {}
        states = seen.hidden_states
        assert states is not None, "a scorer that needs hidden states is given them inside a model"
        layer = getattr(seen.module, "layer_idx", None) or 0
        head = untrained(states, slots.score.shape[1], layer) if self.heads == UNTRAINED else self.known[layer]
        return {"score": head.predict(states)}
