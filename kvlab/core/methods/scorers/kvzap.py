"""KVzap and Fast KVzip: second pass scores predicted from hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from kvlab.core.contract.numerics import round_to_step
from kvlab.core.contract.parts import Capabilities
from kvlab.core.contract.view import AttentionPass, Slots
from kvlab.core.methods.learned.score_networks import ScoreNetwork, random_score_head, random_sink_gate
from kvlab.core.methods.scorers.kvzip import most_looked_at

UNTRAINED = "untrained"
Networks = Literal["kvzap", "fast-kvzip"]


@dataclass(frozen=True)
class PredictedScore:
    """Score_j = a small network's prediction from token j's hidden state: the log of its second pass score.

    `heads` names a file of `kvlab fit --method` and `networks` (`mini`: the shipped one; `untrained`: random weights);
    `known` holds the networks by model layer. Later tokens keep score 0, above all logs.

    With `recalls` the score itself is used instead of its log, so that 0 is the minimum: decisions while decoding raise
    a slot's score to the most attention it gets from the newest `recalls` queries.
    """

    costs_no_step: ClassVar[bool] = True

    heads: str = "mini"
    known: Mapping[int, ScoreNetwork] = field(default_factory=dict)
    every_step: bool = False
    needs_hidden_states: bool = True
    state: Mapping[str, float] = field(default_factory=dict)
    recalls: int = 0
    networks: Networks = "kvzap"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(recalls=self.recalls, recall=self.recall)

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        if not first:
            return {}
        states = layer_pass.hidden_states
        assert states is not None, "a scorer that needs hidden states is given them inside a model"
        layer = getattr(layer_pass.module, "layer_idx", None) or 0
        score = (self._untrained(slots, layer_pass, layer) if self.heads == UNTRAINED else self.known[layer]).predict(
            states
        )
        score = round_to_step(score)  # repeated tokens have equal ones in the first layer
        return {"score": score.exp() if self.recalls else score}

    def _untrained(self, slots: Slots, layer_pass: AttentionPass, layer: int) -> ScoreNetwork:
        states = layer_pass.hidden_states
        heads = slots.score.shape[1]
        assert states is not None
        if self.networks == "kvzap":
            return random_score_head(states, heads, layer)
        return random_sink_gate(states, heads, layer_pass.query.shape[1] // heads, layer)

    def recall(self, slots: Slots, layer_pass: AttentionPass) -> dict[str, Tensor]:
        """`score` (B, H, S) float32 including the newest queries."""
        return most_looked_at(slots, layer_pass, self.recalls)
