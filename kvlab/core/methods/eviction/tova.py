"""TOVA: evict what the newest query attends to least, the same tokens in every head of a layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field
from torch import Tensor

from kvlab.core.contract import AttentionPass, Capabilities, LowestScore, Method, Pipeline, Preset, Slots, register
from kvlab.core.contract.method import Recent, Sinks


@dataclass(frozen=True)
class LastQuery:
    """Score_j = mean over all heads of A[newest query, j]; with `heads="each"`, over those of one KV head."""

    heads: str = "shared"
    every_step: bool = True
    needs_hidden_states: bool = False
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """Heads that keep the same tokens are scored together."""
        return Capabilities(across_heads=self.heads == "shared")

    def update(self, slots: Slots, layer_pass: AttentionPass, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, independent of earlier queries."""
        mass = layer_pass.last_mass()
        return {"score": mass.mean(1, keepdim=True).expand_as(mass).contiguous() if self.heads == "shared" else mass}


@register
class Tova(Method):
    """Keeps what the newest query attends to, averaged over all heads of the layer, updated at every step.

    Only the newest token is protected; an evicted token cannot return, whatever later queries need.
    """

    name = "tova"
    family = "eviction"
    title = "TOVA"

    sinks: Sinks = 0
    recent: Recent = 1
    heads: Literal["shared", "each"] = Field("shared", description="whether all heads of a layer keep the same tokens")

    paper = "https://arxiv.org/abs/2401.06104"
    presets = {
        "paper": Preset(
            "the paper's policy",
            {
                "sinks": (0, "the paper's policy has no fixed tokens; kvpress, tova_press.py, has none"),
                "recent": (1, "the current token is in the cache; kvpress, tova_press.py, gives it the highest score"),
                "heads": ("shared", "the layer-wise form of the paper; kvpress, tova_press.py, averages over heads"),
            },
        ),
    }
    reasons = {
        "sinks": "the paper's",
        "recent": "the paper's",
        "heads": "the paper's",
    }

    def pipeline(self) -> Pipeline:
        return Pipeline(LastQuery(heads=self.heads), select=LowestScore(self.sinks, self.recent))
