"""SimLayerKV: lazy layers keep sinks and recent tokens, the others everything."""

from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import Capabilities, LowestScore, Method, Pipeline, Preset, Uniform, View, log_total, register
from kvlab.core.contract.method import Recent, Sinks
from kvlab.core.methods.scorers.recency import Recency


@dataclass(frozen=True)
class LazyLayers(Uniform):
    """A layer is lazy if the slots that `protect` keeps get more than `threshold` of its attention; needs no budget.

    The attention is that of the prompt's last `rows` queries, mean over queries and all heads. A lazy layer keeps the
    protected slots, any other layer its whole prompt.
    """

    threshold: float = 0.9
    rows: int = 1
    protect: LowestScore = field(default_factory=LowestScore)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # a field in the protocol
        return Capabilities(prompt_rows=lambda tokens: self.rows)

    def head_budgets(self, view: View) -> Tensor:
        """Slots (B, H), the same for all heads of a layer."""
        slots = view.slots
        rows = min(self.rows, view.layer_pass.num_new)
        logits = view.layer_pass.last_logits(rows) + slots.log_mass_of_heads()[:, :, :, None]
        mass = (logits - log_total(logits, view.layer_pass.sinks)).exp().nan_to_num(0.0)  # (B, H, G, r, S)
        stays = self.protect.protected(view) & slots.valid
        share = (mass * stays[:, :, None, None]).sum(-1)
        real = view.layer_pass.rows_seen(rows)[:, :1, :1].clamp(
            1, rows
        )  # (B or 1, 1, 1): every query sees the first slot
        lazy = share.sum((1, 2, 3)) / (share[0, ..., 0].numel() * real[:, 0, 0]) > self.threshold
        return torch.where(lazy[:, None], stays.sum(-1), slots.live())


@register
class SimLayerKV(Method):
    """Keeps sinks and recent tokens in layers that attend to little else, and the whole prompt in all other layers.

    Takes no budget: how many layers are lazy depends on the text. Follows kvpress (simlayerkv_press.py), which leaves
    the last tokens out of the recent ones. Acts once, after the prompt: generated tokens are kept in addition.
    """

    name = "simlayerkv"
    family = "budget-free"
    title = "SimLayerKV"
    needs_budget = False

    threshold: float = Field(0.9, ge=0, le=1, description="share of attention from which on a layer is lazy")
    queries: int = Field(1, ge=1, description="last prompt queries whose attention decides")
    sinks: Sinks = 4
    recent: Recent = 64

    paper = "https://arxiv.org/abs/2410.13846"
    presets = {
        "paper": Preset(
            "the settings of Llama 3, as in kvpress",
            {
                "threshold": (
                    0.9,
                    "kvpress, simlayerkv_press.py: Llama 3; .65 for Llama 2, .8 for Mistral, .85 for Qwen",
                ),
                "queries": (1, "kvpress, simlayerkv_press.py, n_last"),
                "sinks": (4, "kvpress, simlayerkv_press.py, n_initial"),
                "recent": (1024, "kvpress, simlayerkv_press.py, n_recent"),
            },
        ),
    }
    reasons = {
        "recent": "1,024 tokens are all of a short prompt",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(
            Recency(), LazyLayers(threshold=self.threshold, rows=self.queries, protect=select), select, decode=False
        )
