"""PyramidInfer: keep what recent queries attend to, fewer tokens in deeper layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.parts import Capabilities, Selector
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.preset import Preset
from kvlab.core.contract.view import Seen, Slots, View
from kvlab.core.methods.allocators.cosine import CosineDecay, Schedule
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict

ROWS = "recent_rows"
PROMPT = "prompt_tokens"  # per-head state: prompt tokens, which later decisions leave unchanged


@dataclass(frozen=True)
class RecentRows:
    """Score_j = mean over the last R = 1 + int(recent * T) queries of weight_r A[r, j]; weights rise linearly from 1.

    T is the length of the text, even if a layer receives only part of it (prefill saving). The last query's weight is
    `distance_weight`. `heads="shared"` averages over all heads, so that every head keeps the same tokens (the paper);
    `each` averages over the query heads of a KV head. The published code keeps an R x S attention map to slide this
    mean while decoding; here (`decode`) it is a running mean with one number per slot: a new query has weight 1/n, with
    n the queries that could see the slot, at most R.
    """

    recent: float = 0.2
    distance_weight: float = 1.2
    heads: Literal["shared", "each"] = "shared"
    decode: bool = True
    needs_hidden_states: bool = False

    @property
    def every_step(self) -> bool:
        """Only if decoding ranks too."""
        return self.decode

    @property
    def capabilities(self) -> Capabilities:
        """Heads that keep the same tokens are scored together."""
        return Capabilities(prompt_rows=self.prompt_rows, across_heads=self.decode and self.heads == "shared")

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: queries in the running mean."""
        return {ROWS: 0} if self.decode else {}

    def prompt_rows(self, tokens: int) -> int:
        """Number of the prompt's queries that vote."""
        return 1 + int(tokens * self.recent)

    def update(self, slots: Slots, seen: Seen, first: bool) -> dict[str, Tensor]:
        """`score` (B, H, S) float32, and the number of queries in each slot's mean."""
        if not first and not self.decode:
            return {}
        if first:
            # Length of the text, even if only a part reached this layer: the newest token always does.
            text = slots.position[:, 0].masked_fill(~slots.valid[:, 0], -1).amax(-1) + 1
            rows = (1 + (text.double() * self.recent).long()).minimum(slots.valid[:, 0].sum(-1))  # (B,)
            score = self._over_heads(self._prompt_mass(slots, seen, rows))
            return {"score": score} | ({ROWS: rows[:, None, None].float().expand_as(score)} if self.decode else {})
        total = slots.position.masked_fill(~slots.valid, -1).amax((1, 2)) + 1  # (B,): real tokens so far
        rows = 1 + (total * self.recent).long()
        new = seen.rows_seen()
        count = torch.minimum(slots.extra[ROWS] + new, rows[:, None, None])
        keep = (1 - new / count.clamp_min(1)).clamp_min(0)
        score = keep * slots.score + self._over_heads(seen.column_mass()) / count.clamp_min(1)
        return {"score": score, ROWS: count}

    def _prompt_mass(self, slots: Slots, seen: Seen, rows: Tensor) -> Tensor:
        """Weighted mean (B, H, S) over each prompt's own last rows; slot j belongs to query j."""
        most = int(rows.max())
        real = slots.valid[:, 0].long()
        age = (real.flip(-1).cumsum(-1).flip(-1) - real)[:, -most:]  # (B, most): real queries after each
        last = (rows - 1)[:, None]
        weight = 1 + (self.distance_weight - 1) * (last - age) / last.clamp_min(1)
        weight = weight.masked_fill((age > last) | ~slots.valid[:, 0, -most:], 0.0)
        return seen.column_mass(most, weight) / rows[:, None, None]

    def _over_heads(self, mass: Tensor) -> Tensor:
        return mass.mean(1, keepdim=True).expand_as(mass) if self.heads == "shared" else mass


@dataclass(frozen=True)
class ThinInLots:
    """Evict the prompt to its budget once; keep generated tokens, thinned `lot` at a time.

    When `lot` of them have left the recent region (the last 1 + int(recent * tokens seen)), the k best scored are kept
    for good: k = max(1, int(lot * keep * c_i)) with c_i = (1 - ratio) (cos(pi i / L) + 1) / 2 + ratio in layer i of L.
    The n-th lot is the n-th `lot` generated tokens by position.
    """

    lot: int = 16
    keep: float = 0.9
    ratio: float = 0.1
    recent: float = 0.2
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        """Generated tokens are kept in addition to the budget until their lot is complete."""
        return Capabilities(thinned=self.thinned, head_bytes=self.head_bytes)

    def settle(self, view: View, select: Selector) -> Plan:
        """Evict the prompt's victims, or those of complete lots."""
        if view.phase == "prefill":
            keep = select.victims(view, view.excess(), view.most_excess).keep(view.slots.valid)
            return Plan(keep, head_state={PROMPT: view.tokens_seen[:, None].expand_as(view.budget).contiguous()})
        prompt = view.head_state.get(PROMPT)
        if prompt is None:  # no decision so far: the tokens of this pass are the generated ones
            prompt = (view.tokens_seen - view.seen.num_new)[:, None].expand_as(view.budget).contiguous()
        region = 1 + (view.tokens_seen.double() * self.recent).long()
        complete = ((view.tokens_seen - region)[:, None] - prompt).clamp_min(0) // self.lot  # (B, H)
        keep = view.slots.valid
        for back in range(view.most_excess // self.lot + 1):
            first = prompt + self.lot * (complete - 1 - back)
            keep = keep & ~self._complete_lots(view, first, complete > back)
        return Plan(keep, head_state={PROMPT: prompt})

    def head_bytes(self, keys: Tensor, values: Tensor, select: Selector) -> int:
        """Bytes of the prompt length stored per head."""
        return 8

    def thinned(self, before: int, shortest: int, longest: int, layer: int, num_layers: int) -> int:
        """Slots that every head has certainly evicted in lots.

        For texts of `shortest` to `longest` tokens whose prompts had at most `before`.
        """
        complete = max(shortest - 1 - int(longest * self.recent) - before, 0) // self.lot
        return complete * (self.lot - self.kept(layer, num_layers))

    def kept(self, layer: int, num_layers: int) -> int:
        """Kept tokens k per lot."""
        cosine = (1 - self.ratio) * (math.cos(math.pi * layer / num_layers) + 1) / 2 + self.ratio
        return max(1, int(self.lot * self.keep * cosine))

    def _complete_lots(self, view: View, first: Tensor, due: Tensor) -> Tensor:
        """Victims (B, H, S) of the lot that begins at `first` (B, H): all but the best, if `due`."""
        slots = view.slots
        inside = slots.valid & (slots.position >= first[..., None]) & (slots.position < (first + self.lot)[..., None])
        excess = (inside.sum(-1) - self.kept(view.layer_idx, view.num_layers)).clamp_min(0) * due
        order = torch.nan_to_num(slots.score).masked_fill(~inside, torch.inf)
        index = slots.lowest(order, min(self.lot, order.shape[-1]))
        active = torch.arange(index.shape[-1], device=index.device) < excess[..., None]
        return torch.zeros_like(slots.valid).scatter(2, index, active)


@register
class PyramidInfer(Method):
    """Keeps what recent queries attend to, the same tokens in every head, fewer of them in deeper layers.

    Budgets fall along half a cosine. `lengths="budget"` (default) scales them to the exact budget; `decay` takes no
    budget: the whole prompt enters the first layer and the ratios decide, as in the authors' code. `region="prompt"`
    (theirs) keeps a recent fifth of the prompt in every layer, so that the decay applies to the rest: 20 % of the cache
    is then a local window.

    `decode="budget"`, the default, ranks prompt and generated tokens together and never exceeds the budget; `keep`
    keeps all generated tokens; `lots` is the authors' rule: when `lot` generated tokens have left the recent fifth of
    the text, the best `lot_keep` of them are kept, times a cosine over the layers, so that the cache grows with the
    text.

    With `prefill_saving`, as published, deeper layers do not receive the hidden states of tokens that a layer evicted:
    they compute less, and cannot keep what they never see. Without it (default) every layer sees the whole prompt and
    then compresses. Measured on mini with 8 prompts of 896 tokens, budgets 50, 20 and 10 %: operations of the prefill
    .59, .34 and .25 of those without saving, processor time .64, .36 and .29, KL of a continuation read in one pass
    .048, .071 and .191 against .054, .075 and .113 without.

    Scores are not pooled over neighbours, so single digits of a number are kept and the others evicted: on mini at 20 %
    it finds none of 8 needles, like H2O and like SnapKV without pooling; SnapKV finds 4.
    """

    name: ClassVar[str] = "pyramidinfer"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "PyramidInfer"

    ratio: float = Field(0.9, gt=0, le=1, description="where the cosine decay ends (0.9 for 7 B models, 0.8 for 13 B)")
    schedule: Schedule = Field(
        "compound", description="apply the decay to what the layers before pass on (published), or to the prompt"
    )
    lengths: Literal["budget", "decay"] = Field(
        "budget", description="scale lengths to the budget, or let the decays decide (published)"
    )
    recent: float = Field(
        0.2, gt=0, lt=1, description="share of the prompt's queries that vote, and of the recent region kept"
    )
    region: Literal["budget", "prompt"] = Field(
        "budget", description="the recent region is a share of the budget, or of the prompt and never cut (published)"
    )
    minimum: int = Field(0, ge=0, description="slots below which no layer's context is cut (64 published)")
    interval: int = Field(1, ge=1, description="with `compound` only every so many layers cut (2 for 13 B, 3 for 70 B)")
    distance_weight: float = Field(1.2, gt=0, description="weight of the newest query; the oldest that votes has 1")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    heads: Literal["shared", "each"] = Field("shared", description="same tokens in every head (paper), or each its own")
    prefill_saving: bool = Field(False, description="deeper layers compute only what the layers before kept (paper)")
    decode: Literal["budget", "keep", "lots"] = Field(
        "budget", description="generated tokens compete, are all kept, or are thinned in lots (published)"
    )
    lot: int = Field(16, ge=2, description="decode `lots`: generated tokens thinned together")
    lot_keep: float = Field(0.9, gt=0, le=1, description="decode `lots`: share of a lot that the first layer keeps")
    lot_ratio: float = Field(0.1, ge=0, le=1, description="decode `lots`: end of the cosine over layers")

    paper: ClassVar[str] = "https://arxiv.org/abs/2405.12532"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the paper's method at the settings recommended for 7 B models",
            {
                "ratio": (0.9, "configs/llama2_7b.json, prefill_decay_ratio"),
                "schedule": (
                    "compound",
                    (
                        "models/modeling_llama_pyramidinfer.py: a layer receives the hidden states of what the one "
                        "before passes on"
                    ),
                ),
                "lengths": ("decay", "models/modeling_llama_pyramidinfer.py: only ratios decide"),
                "recent": (0.2, "configs/llama2_7b.json, recent_ratio"),
                "region": (
                    "prompt",
                    "models/modeling_llama_pyramidinfer.py: the last 1 + int(.2 T) tokens are never compressed",
                ),
                "minimum": (64, "configs/llama2_7b.json, min_context_length"),
                "interval": (1, "configs/llama2_7b.json, layerwise_downsample_interval"),
                "distance_weight": (1.2, "configs/llama2_7b.json, distance_weight"),
                "sinks": (4, "configs/llama2_7b.json, streamingllm_sink_len"),
                "heads": ("shared", "models/modeling_llama_pyramidinfer.py: the mean over heads"),
                "prefill_saving": (True, "models/modeling_llama_pyramidinfer.py: hidden states are gathered"),
            },
            beyond=(
                "In the original a layer keeps what the layer before passes on by that layer's attention; here it "
                "keeps equally many by its own attention, and receives what the layer before kept."
            ),
        ),
        "code": Preset(
            "the authors' code as configured for 7 B and 8 B models",
            {
                "ratio": (0.9, "configs/llama2_7b.json, prefill_decay_ratio"),
                "schedule": (
                    "compound",
                    (
                        "models/modeling_llama_pyramidinfer.py: a layer receives the hidden states of what the one "
                        "before passes on"
                    ),
                ),
                "lengths": ("decay", "models/modeling_llama_pyramidinfer.py: only ratios decide"),
                "recent": (0.2, "configs/llama2_7b.json, recent_ratio"),
                "region": (
                    "prompt",
                    "models/modeling_llama_pyramidinfer.py: the last 1 + int(.2 T) tokens are never compressed",
                ),
                "minimum": (64, "configs/llama2_7b.json, min_context_length"),
                "interval": (1, "configs/llama2_7b.json, layerwise_downsample_interval"),
                "distance_weight": (1.2, "configs/llama2_7b.json, distance_weight"),
                "sinks": (4, "configs/llama2_7b.json, streamingllm_sink_len"),
                "heads": ("shared", "models/modeling_llama_pyramidinfer.py: the mean over heads"),
                "prefill_saving": (True, "models/modeling_llama_pyramidinfer.py: hidden states are gathered"),
                "decode": ("lots", "models/modeling_llama_pyramidinfer.py, generation stage"),
                "lot": (16, "configs/llama2_7b.json, exceed_length_to_compress"),
                "lot_keep": (0.9, "configs/llama2_7b.json, gen_compress_ratio"),
                "lot_ratio": (0.1, "configs/llama2_7b.json, gen_decay_ratio"),
            },
            beyond=(
                "In the original a layer keeps what the layer before passes on by that layer's attention; here it "
                "keeps equally many by its own attention, and receives what the layer before kept. While decoding the "
                "original weights recent queries as in the prompt, over a stored map; here it is a running mean. It "
                "counts tokens seen instead of slots held when tokens leave the recent region, so that layers with "
                "few prompt tokens thin these too; here only generated tokens are thinned, as its README says."
            ),
        ),
        "code-13b": Preset(
            "the authors' code as configured for 13 B models",
            {
                "ratio": (0.8, "configs/llama2_13b.json, prefill_decay_ratio"),
                "schedule": (
                    "compound",
                    (
                        "models/modeling_llama_pyramidinfer.py: a layer receives the hidden states of what the one "
                        "before passes on"
                    ),
                ),
                "lengths": ("decay", "models/modeling_llama_pyramidinfer.py: only ratios decide"),
                "recent": (0.2, "configs/llama2_13b.json, recent_ratio"),
                "region": (
                    "prompt",
                    "models/modeling_llama_pyramidinfer.py: the last 1 + int(.2 T) tokens are never compressed",
                ),
                "minimum": (64, "configs/llama2_13b.json, min_context_length"),
                "interval": (2, "configs/llama2_13b.json, layerwise_downsample_interval"),
                "distance_weight": (1.2, "configs/llama2_13b.json, distance_weight"),
                "sinks": (4, "configs/llama2_13b.json, streamingllm_sink_len"),
                "heads": ("shared", "models/modeling_llama_pyramidinfer.py: the mean over heads"),
                "prefill_saving": (True, "models/modeling_llama_pyramidinfer.py: hidden states are gathered"),
                "decode": ("lots", "models/modeling_llama_pyramidinfer.py, generation stage"),
                "lot": (16, "configs/llama2_13b.json, exceed_length_to_compress"),
                "lot_keep": (0.9, "configs/llama2_13b.json, gen_compress_ratio"),
                "lot_ratio": (0.1, "configs/llama2_13b.json, gen_decay_ratio"),
            },
            beyond=(
                "In the original a layer keeps what the layer before passes on by that layer's attention; here it "
                "keeps equally many by its own attention, and receives what the layer before kept. While decoding the "
                "original weights recent queries as in the prompt, over a stored map; here it is a running mean. It "
                "counts tokens seen instead of slots held when tokens leave the recent region, so that layers with "
                "few prompt tokens thin these too; here only generated tokens are thinned, as its README says."
            ),
        ),
        "code-70b": Preset(
            "the authors' code as configured for 70 B models",
            {
                "ratio": (0.9, "configs/llama2_70b.json, prefill_decay_ratio"),
                "schedule": (
                    "compound",
                    (
                        "models/modeling_llama_pyramidinfer.py: a layer receives the hidden states of what the one "
                        "before passes on"
                    ),
                ),
                "lengths": ("decay", "models/modeling_llama_pyramidinfer.py: only ratios decide"),
                "recent": (0.2, "configs/llama2_70b.json, recent_ratio"),
                "region": (
                    "prompt",
                    "models/modeling_llama_pyramidinfer.py: the last 1 + int(.2 T) tokens are never compressed",
                ),
                "minimum": (64, "configs/llama2_70b.json, min_context_length"),
                "interval": (3, "configs/llama2_70b.json, layerwise_downsample_interval"),
                "distance_weight": (1.2, "configs/llama2_70b.json, distance_weight"),
                "sinks": (4, "configs/llama2_70b.json, streamingllm_sink_len"),
                "heads": ("shared", "models/modeling_llama_pyramidinfer.py: the mean over heads"),
                "prefill_saving": (True, "models/modeling_llama_pyramidinfer.py: hidden states are gathered"),
                "decode": ("lots", "models/modeling_llama_pyramidinfer.py, generation stage"),
                "lot": (16, "configs/llama2_70b.json, exceed_length_to_compress"),
                "lot_keep": (0.9, "configs/llama2_70b.json, gen_compress_ratio"),
                "lot_ratio": (0.1, "configs/llama2_70b.json, gen_decay_ratio"),
            },
            beyond=(
                "In the original a layer keeps what the layer before passes on by that layer's attention; here it "
                "keeps equally many by its own attention, and receives what the layer before kept. While decoding the "
                "original weights recent queries as in the prompt, over a stored map; here it is a running mean. It "
                "counts tokens seen instead of slots held when tokens leave the recent region, so that layers with "
                "few prompt tokens thin these too; here only generated tokens are thinned, as its README says."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "ratio": "for 7 B models; 13 B models have 0.8",
        "lengths": "methods are compared at one budget; decays only would keep 88 % and more of 896 tokens on mini",
        "region": (
            "a share of the prompt leaves no context at 20 %: KL .095 against .075 on mini (8 prompts of 896 tokens), "
            ".158 against .113 at 10 %, and .049 against .054 at 50 %"
        ),
        "minimum": "64 slots exceed many budgets here",
        "interval": "for 7 B models; larger ones cut every second or third layer",
        "prefill_saving": "without it every layer sees the whole prompt as with all other methods, in any model family",
        "decode": "the cache stays within the budget, as with all other methods; with lots it grows with the text",
        "lot": "used by decode `lots` only; the value is the authors'",
        "lot_keep": "used by decode `lots` only; the value is the authors'",
        "lot_ratio": "used by decode `lots` only; the value is the authors'",
    }

    @model_validator(mode="after")
    def _check_allocation(self) -> PyramidInfer:
        if self.prefill_saving and self.heads == "each":
            raise ValueError("prefill_saving needs the same tokens in every head: use heads 'shared'")
        return self

    @property
    def needs_budget(self) -> bool:  # type: ignore[override]  # a constant of the class elsewhere
        """Unless lengths follow from the decays."""
        return self.lengths == "budget"

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        """Warn if the recent region takes the whole budget."""
        if self.region == "budget" or not self.needs_budget or budget_slots >= prompt_tokens:
            return []
        region = 1 + int(prompt_tokens * self.recent)
        if budget_slots > region:
            return []
        return [
            f"The budget of {budget_slots:,} slots per head does not exceed the recent region of {region:,} tokens: "
            f"PyramidInfer keeps the last {budget_slots:,} tokens only, like a local window."
        ]

    def pipeline(self) -> Pipeline:
        later = self.decode != "keep"
        of_prompt = self.region == "prompt"
        region = self.recent if of_prompt else 0.0
        free = self.lengths == "decay"
        lots = ThinInLots(lot=self.lot, keep=self.lot_keep, ratio=self.lot_ratio, recent=self.recent)
        return Pipeline(
            RecentRows(recent=self.recent, distance_weight=self.distance_weight, heads=self.heads, decode=later),
            CosineDecay(self.ratio, self.schedule, region, self.minimum, self.interval, free),
            LowestScore(self.sinks, self.recent, "text" if of_prompt else "budget"),
            lots if self.decode == "lots" else Evict(),
            decode=later,
            saves_prefill=self.prefill_saving,
        )
