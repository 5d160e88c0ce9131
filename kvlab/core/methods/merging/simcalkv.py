"""SimCalKV: merge similar keys in pairs, calibrated so that a pair counts twice."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field

from kvlab.core.contract import Capabilities, Edges, LowestScore, Pipeline, Plan, Preset, Selector, View, gather
from kvlab.core.contract.method import Method, Sinks, register
from kvlab.core.contract.numerics import NEVER_SEEN
from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.wrapper import PromptOnly
from kvlab.core.methods.settlers.edges import nearest_slot, sum_to_target
from kvlab.core.methods.settlers.log_mass import log_sum_over_target


@dataclass(frozen=True)
class PairCalibration:
    """Merge each victim into the kept slot with the most similar key (cosine above `threshold`), or evict it.

    The new key is half the kept one and half the mean of its victims, however many; the new value is their mean
    weighted by exp(logit of the last query), mean logit of the group. `repaired`: log mass ln 2 for the two halves.
    `code`: the authors' code adds ln 2 to every coordinate of the key instead, which changes a logit by ln 2 times the
    sum of the query, and weights values by the unrotated query.
    """

    seeks: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(by_selector=True, merges=True, mass_of_votes=None)

    threshold: float = 0.0
    variant: Literal["repaired", "code"] = "repaired"
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    def settle(self, view: View, select: Selector) -> Plan:
        """Merge victims with a similar enough key, evict the others."""
        slots = view.slots
        width = view.slots.valid.shape[-1]
        victims = select.victims(view, view.excess(), view.most_excess)
        source = victims.index
        keep = victims.keep(slots.valid)
        similarity, target = nearest_slot(slots, source, keep, view.never())
        active = victims.active & (similarity > self.threshold)
        target = torch.where(active, target, source)
        half = torch.full_like(similarity, 0.5)
        joining = sum_to_target(torch.ones_like(similarity), target, active, width).clamp_min(1)
        # Logits (B, H, S) of the last query, mean over the group; in the code of the query before rotation.
        layer_pass = view.layer_pass
        if self.variant == "code" and layer_pass.rotary is not None:
            query = layer_pass.query[:, :, -1:]
            back = -(view.tokens_seen - 1)[:, None, None].expand(query.shape[:3])
            logits = layer_pass.logits_of(layer_pass.rotary.turn(query, back).to(query.dtype))
        else:
            logits = layer_pass.last_logits()
        logits = logits[:, :, :, 0].mean(2).clamp_min(NEVER_SEEN)
        of_source = gather(logits, source)
        of_target = gather(logits, target)
        total = log_sum_over_target(of_source, of_target, target, active, width)
        code = self.variant == "code"
        votes = slots.votes.float()
        score = slots.score
        in_every_channel = half.new_full((), math.log(2)).expand(*half.shape, slots.keys.shape[-1])
        edges = Edges(
            source=source,
            target=target,
            active=active,
            key_weight=half / joining,
            value_weight=(of_source - total).exp(),
            self_key_weight=half,
            self_value_weight=(of_target - total).exp(),
            votes_after=gather(votes, target) + sum_to_target(gather(votes, source), target, active, width),
            log_mass_after=gather(slots.log_mass, target) if code else torch.full_like(half, math.log(2)),
            score_after=gather(score, target) + sum_to_target(gather(score, source), target, active, width),
            similarity=similarity,
            key_shift=in_every_channel if code else None,
        )
        return Plan(keep=keep, edges=edges)


@register
class SimCalKV(Method):
    """Merges the prompt's least attended tokens into the kept ones with the most similar keys, which count twice.

    The bias for counting twice is a log mass here. The authors' code adds it to every coordinate of the key;
    `variant=code` reproduces that. Acts once, after the prompt.
    """

    name = "simcalkv"
    family = "merging"
    title = "SimCalKV"

    threshold: float = Field(
        0.0, ge=-1, le=1, description="cosine of keys above which a token merges, else it is evicted"
    )
    variant: Literal["repaired", "code"] = Field(
        "repaired", description="a bias of ln 2 on the logit, or on each channel"
    )
    sinks: Sinks = 0
    recent: float | int = Field(0.5, gt=0, description="last tokens that always stay; below 1: a share of the budget")

    paper = "https://github.com/William-kaihhu/SimCalKV"
    presets = {
        "paper": Preset(
            "bias calibration as intended: two merged tokens count as two",
            {
                "variant": ("repaired", "the calibration's aim; a bias belongs to the logit"),
            },
        ),
        "code": Preset(
            "the authors' code",
            {
                "variant": ("code", "task_evaluation/llama/merge_ours.py, merge_by_token and get_qt"),
                "threshold": (0.0, "task_evaluation/llama/merge_ours.py, Repair, sim_thr"),
                "sinks": (0, "task_evaluation/llama/merge_ours.py: only attention decides"),
                "recent": (
                    1,
                    "task_evaluation/llama/merge_ours.py: only attention decides; the newest token is always kept here",
                ),
            },
            beyond="It treats every query head as a KV head.",
        ),
    }
    reasons = {
        "variant": "a number added to every coordinate changes logits by the sum of the query's coordinates",
        "threshold": "the code's",
        "sinks": "the code's",
        "recent": "half of the budget, as in H2O, whose score it uses: sums over all queries favour old tokens",
    }

    def pipeline(self) -> Pipeline:
        score = PromptOnly(AccumulatedAttention())
        settle = PairCalibration(threshold=self.threshold, variant=self.variant)
        return Pipeline(score, select=LowestScore(self.sinks, self.recent), settle=settle, decode=False)
