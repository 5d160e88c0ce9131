"""NACL: keep what proxy tokens attend to, and some of the rest at random."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Sinks, Victims, View, gumbel_draws, register
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.core.methods.selectors.chunks import Reordering


@dataclass(frozen=True)
class SampledRest(Reordering):
    """Apply `inner` to scores by which the share `drawn` of a head's budget goes to slots drawn without replacement.

    Beside protected slots the highest scores stay; of all others a slot is drawn with a probability that is
    proportional to exp(score / `temperature`): the highest of score / temperature + Gumbel noise. The noise depends on
    seed, layer, head and position only, never on the batch.
    """

    drawn: float = 0.1
    temperature: float = 1.0

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> Victims:
        """The inner selector's, by these scores."""
        slots = view.slots
        score = slots.score.nan_to_num(nan=0.0)
        safe = self.inner.protected(view) & slots.valid
        standing = score.masked_fill(safe, torch.inf).masked_fill(~slots.valid, -torch.inf)
        rank = slots.lowest(standing, standing.shape[-1]).argsort(-1)  # from the lowest
        room = (view.budget - safe.sum(-1)).clamp_min(0)
        by_chance = (view.budget * self.drawn).long().minimum(room)
        won = rank >= rank.shape[-1] - (view.budget - by_chance)[..., None]
        seed = 0 if view.generator is None else view.generator.initial_seed()
        noise = gumbel_draws(seed, slots.position)
        weighed = torch.where(won, torch.inf, score / self.temperature + noise)
        return self.inner.victims(replace(view, slots=replace(slots, score=weighed)), excess, most, barred)


@register
class Nacl(Method):
    """Keeps the tokens that the prompt's last tokens attend to most, and draws a share of the budget from the others.

    Draws are by softmax of the same score, so that tokens which the proxies overlook have a chance. Follows
    KVCache-Factory (pyramidkv/nacl.py). Acts once, after the prompt, as published.
    """

    name = "nacl"
    family = "eviction"
    title = "NACL"
    keeps_window = True

    window: int = Field(32, ge=1, description="last prompt tokens that score (proxies); they always stay")
    drawn: float = Field(0.1, ge=0, le=1, description="share of the budget that is drawn at random")
    temperature: float = Field(1.0, gt=0, description="of the softmax that tokens are drawn by")
    sinks: Sinks = 0

    paper = "https://arxiv.org/abs/2408.03675"
    presets = {
        "paper": Preset(
            "proxies at the end of the prompt, as in KVCache-Factory",
            {
                "temperature": (1.0, "KVCache-Factory, pyramidkv/nacl.py, random_temperature"),
                "sinks": (0, "KVCache-Factory, pyramidkv/nacl.py, select_nacl_proxy_indices: suffix"),
            },
            beyond="The paper's share of random tokens could not be confirmed.",
        ),
    }
    reasons = {
        "window": "SnapKV's, which are the same queries",
        "drawn": "our choice: mostly by score, and some by chance",
    }

    def pipeline(self) -> Pipeline:
        select = SampledRest(inner=LowestScore(self.sinks, self.window), drawn=self.drawn, temperature=self.temperature)
        return Pipeline(WindowAttention(self.window, 1), select=select, decode=False)
