"""A method of one's own in one class: it keeps the slots with the longest values. Compared with SnapKV."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import kvlab
from kvlab.extend import AttentionPass, LowestScore, Method, Pipeline, Slots, register, register_scorer


@register_scorer("value-norm")
@dataclass(frozen=True)
class ValueNorm:
    every_step = False
    needs_hidden_states = False
    state: ClassVar = {}

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        return {"score": slots.values.float().norm(dim=-1)}  # (B, H, S), the lowest go first


@register
class LongValues(Method):
    name = "long-values"
    family = "eviction"
    title = "Long values"

    def pipeline(self) -> Pipeline:
        return Pipeline(ValueNorm(), select=LowestScore(recent=16, sinks=4))


text = "The letter was under the third stone of the old wall, and nobody had looked there for years. " * 12
print(kvlab.compare(text, methods=["long-values", "snapkv"], budgets=[0.2], new_tokens=16, level="light"))
