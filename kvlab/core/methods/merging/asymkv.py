"""AsymKV: merge neighbours, keys weighted by curvature, values by count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from kvlab.core.contract import Edges, LowestScore, NewKeys, Pipeline, Plan, Preset, View, gather
from kvlab.core.contract.method import DecodeCompression, Sinks, register
from kvlab.core.contract.parts import Capabilities, Selector, protected_slots
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.core.methods.settlers.edges import at_rows, first_of
from kvlab.core.methods.settlers.log_mass import SPACE_HELP, Space
from kvlab.core.methods.settlers.observed_queries import Observed

KeyWeights = Literal["gradient", "hessian", "hessian-code", "equal"]
TINY = 1e-21  # as in the authors' code
ROUNDING = 1e-4  # of a number of rounds, in float32
MOST_SHRINKING = 0.75  # smallest share of the mergeable slots that a round leaves
MERGED_IN_BLOCKS = (
    "The original reads the text in blocks of 512, merges each before the next, and loses a token of pairs that "
    "touch; here the prompt is merged once, in rounds, and pairs that touch become one run."
)
MERGED_WINDOW = "SnapKV's; the code's block of 512 would fill the budget of a short prompt"
MERGED_SINKS = "four, as elsewhere; the code's 32 would fill a small budget"
MERGED_CLIP = "the paper's: a slot that counts for fewer tokens than it holds is underrated"
MERGED_VALUES = "only used with `clip`; a sum beyond it would overrate values"
# Settings that the code of AsymKV and of KVSlimmer share, each with its source.
SETTINGS_OF_BOTH_CODES: Mapping[str, tuple[object, str]] = {
    "window": (512, "Asymkv_model_generate.py, input_window: the block's queries"),
    "sinks": (32, "Asymkv_model_generate.py, start_size"),
    "clip": (5, "asymkv/method/asymkv.py, torch.clip"),
    "add_values": (
        True,
        (
            "asymkv/method/asymkv.py, ve; asymkv/method/asymkv_forward/asymkv_llama.py: lengths count in "
            "the denominator only"
        ),
    ),
    "late": (True, "asymkv/method/asymkv.py, gamma"),
    "heads": ("shared", "asymkv/method/asymkv.py, weight_i is summed over heads"),
    "space": ("unrotated", "asymkv/method/asymkv_forward/asymkv_llama.py: keys are stored before rotation"),
    "decode": ("budget", "pred.py: the cache is merged again while decoding"),
    "buffer": (512, "Asymkv_model_generate.py, input_window"),
}
LATE = "exp(place / (4096 / ln 512))"


@dataclass(frozen=True)
class PairMerge:
    """Merge victims with their neighbours: adjacent pairs with the least attention, round by round.

    A pair's weight is the sum of both slots' scores times their tokens, times the tokens of both, over exp(`late` * its
    place): later pairs are cheaper if `late` is positive. Touching pairs form a run, and a round leaves three quarters
    of the slots, so that weights are updated. `heads="shared"` sums weights over heads.

    A run becomes one slot at the place of its last. Its value is the mean over tokens and its log mass log(tokens), at
    most log(`clip`) if that is not 0; with `add_values`, values stay a sum beyond the clip, as published. Its key is
    the mean by `keys`, of keys rotated to that place (`space="unrotated"`, as published: keys are stored unrotated
    there):

    - `gradient`: per channel, sum over the last `rows` queries of (a |v - o| q)^2, which is the squared gradient of a
      loss whose gradient at the output has no preferred direction; no loss is available while reading;
    - `hessian`: KVSlimmer's h_i - h_ij, with h_i = a_i (1 - 2 a_i) |v_i - o|, h_ij = a_i a_j |v_i + v_j - 2 o|, each
      against its neighbours in the run, summed over queries; equal weights if not all are positive (counted);
    - `hessian-code`: as in its code: L1 lengths, and a_i a_j (|v_i - o| + |v_j - o|);
    - `equal`.
    """

    needs_protection: ClassVar[bool] = True

    keys: KeyWeights = "gradient"
    rows: int = 32
    clip: int = 0
    add_values: bool = False
    late: float = 0.0
    heads: Literal["shared", "each"] = "shared"
    space: Space = "unrotated"
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """Heads that merge the same pairs are weighed together; log mass follows from votes unless clipped."""
        return Capabilities(
            prompt_rows=lambda tokens: 1 if self.keys == "equal" else self.rows,
            across_heads=self.heads == "shared",
            recalls=0 if self.keys == "equal" else self.rows,
            merges=True,
            mass_of_votes=1.0 if self.clip == 0 else None,
        )

    def settle(self, view: View, select: Selector) -> Plan:
        """Merge everything over budget; heads with too few neighbours evict."""
        slots = view.slots
        most = min(view.most_excess, view.slots.valid.shape[-1])
        order = slots.in_text()
        may = (slots.valid & ~protected_slots(select, view)).gather(2, order)
        excess = view.excess()
        enough = (may[..., 1:] & may[..., :-1]).sum(-1) >= excess
        runs = Runs.from_joined(self._joined(view, order, may, torch.where(enough, excess, 0)))
        plainly = replace(view, certain=False)
        victims = select.victims(plainly, torch.where(enough, 0, excess), most)
        source, active = first_of(runs.joined, most)
        merged = torch.zeros_like(slots.valid).scatter(2, order, runs.joined)
        # Keys of merged runs, and the number of runs per head without usable weights.
        keys = gather(slots.keys, order).float()
        position = gather(slots.position, order)
        if self.space == "unrotated" and view.layer_pass.rotary is not None:
            keys = view.layer_pass.rotary.turn(keys, (position.gather(2, runs.last) - position).float())
        weight, guarded = self._key_weights(view, order, runs)
        total = runs.sums(weight).gather(2, runs.number[..., None].expand_as(weight)).clamp_min(TINY)
        mean = runs.sums(weight / total * keys)
        place, _ = first_of(runs.ends, most)
        number = runs.number.gather(2, place)
        made = torch.where(runs.ends.gather(2, place)[..., None], gather(mean, number), gather(keys, place))
        new_keys = NewKeys(order.gather(2, place), made)
        target = runs.last.gather(2, source)
        votes = gather(slots.votes, order).float()
        total_votes = runs.sums(votes).gather(2, runs.number)
        held, whole = (part.clamp_max(self.clip) if self.clip else part for part in (votes, total_votes))
        share = held / whole if self.add_values else votes / total_votes
        edges = Edges(
            source=order.gather(2, source),
            target=order.gather(2, target),
            active=active,
            key_weight=None,
            value_weight=share.gather(2, source),
            self_key_weight=None,
            self_value_weight=share.gather(2, target),
            votes_after=total_votes.gather(2, target),
            log_mass_after=whole.log().gather(2, target),
            score_after=runs.sums(gather(slots.score, order)).gather(2, runs.number).gather(2, target),
            similarity=None,
        )
        return Plan(victims.keep(slots.valid) & ~merged, edges, guarded, new_keys=new_keys)

    def _joined(self, view: View, order: Tensor, may: Tensor, wanted: Tensor) -> Tensor:
        """Slots (B, H, S), in text order, that join the next one; `wanted` (B, H) of them."""
        score = gather(view.slots.score, order).nan_to_num(0.0)
        votes = gather(view.slots.votes, order).float()
        if self.heads == "shared":
            score, votes = (part.sum(1, keepdim=True).expand_as(part) for part in (score, votes))
        pairs = torch.zeros_like(may)
        pairs[..., :-1] = may[..., 1:] & may[..., :-1]
        joined = torch.zeros_like(may)
        # Rounds of each head (B, 1 or H), and a bound over heads: a head over its budget has at most budget + excess
        # slots. They depend on a row's own tokens only, not on padding or other rows of the batch.
        count = view.slots.valid.sum(-1)
        excess = view.excess()
        if self.heads == "shared":
            count = count.amax(1, keepdim=True)
            excess = excess.amax(1, keepdim=True)
        shrinks = (count.float() / (count - excess).clamp_min(1)).clamp_min(1)
        rounds = (shrinks.log() / math.log(1 / MOST_SHRINKING) - ROUNDING).ceil().clamp_min(1)
        largest = 1 + view.most_excess / max(view.smallest_budget, 1)
        most = max(1, math.ceil(math.log(largest) / math.log(1 / MOST_SHRINKING) - ROUNDING))
        for number in range(most):
            runs = Runs.from_joined(joined)
            attention = runs.sums(score)
            tokens = runs.sums(votes)
            weight = _both(attention, runs.number) * _both(tokens, runs.number)
            weight = weight / (runs.number * self.late).exp()
            candidates = pairs & ~joined
            missing = (wanted - joined.sum(-1)).clamp_min(0)
            some = missing.minimum((candidates.sum(-1) * (1 - MOST_SHRINKING)).ceil().long())
            missing = torch.where(number < rounds - 1, some, missing)
            rank = weight.masked_fill(~candidates, torch.inf).argsort(stable=True, dim=-1).argsort(-1)
            joined = joined | (candidates & (rank < missing[..., None]))
        return joined

    def _key_weights(self, view: View, order: Tensor, runs: Runs) -> tuple[Tensor, Tensor]:
        """Positive weights (B, H, S, d or 1) in text order, and the number of runs (B, H) that use equal weights
        instead.
        """
        equal = torch.ones(*order.shape, 1, device=order.device)
        none = torch.zeros(order.shape[:2], device=order.device)
        if self.keys == "equal":
            return equal, none
        observed = Observed.newest(view, self.rows)
        mass = at_rows(observed.mass, order)
        value = gather(view.slots.values, order).float()
        output = observed.output
        weights = observed.weight[..., None]
        if self.keys == "gradient":
            query = Observed.asked_by(view, self.rows).square()
            query = query if view.layer_pass.rotary is None else view.layer_pass.rotary.of_pairs(query)
            found = (mass * torch.cdist(output, value) * weights.sqrt()).square().mT @ query
        else:
            # h_i minus h_ij of the neighbours in the run, (B, H, S).
            weighted = mass * weights
            code = self.keys == "hessian-code"
            apart = torch.cdist(output, value, p=1.0 if code else 2.0)  # |v - o| (B, H, N, S)
            diagonal = (weighted * (1 - 2 * mass) * apart).sum(2)
            pairs = value[:, :, 1:] + value[:, :, :-1]
            both = apart[..., 1:] + apart[..., :-1] if code else torch.cdist(2 * output, pairs)
            crossed = torch.zeros_like(diagonal)
            crossed[..., :-1] = (weighted[..., :-1] * mass[..., 1:] * both).sum(2) * runs.joined[..., :-1]
            before = torch.zeros_like(diagonal)
            before[..., 1:] = crossed[..., :-1]
            found = (diagonal - crossed - before)[..., None]
        sane = (found > 0).all(-1)
        bad = runs.sums((~sane).float()).gather(2, runs.number) > 0
        return torch.where(bad[..., None], equal, found), (bad & runs.ends).sum(-1).float()


@dataclass(frozen=True)
class Runs:
    """Slots in text order, some of which join the next one, and merge into their run's last: `joined` (B, H, S) bool.

    `number` (B, H, S): index of each slot's run; `last` (B, H, S): place of its run's last slot.
    """

    joined: Tensor
    number: Tensor
    last: Tensor

    @classmethod
    def from_joined(cls, joined: Tensor) -> Runs:
        """Runs defined by `joined`."""
        start = torch.ones_like(joined)
        start[..., 1:] = ~joined[..., :-1]
        number = start.cumsum(-1) - 1
        place = torch.arange(joined.shape[-1], device=joined.device).expand_as(number)
        last = torch.zeros_like(number).scatter_reduce(2, number, place, "amax").gather(2, number)
        return cls(joined, number, last)

    @property
    def ends(self) -> Tensor:
        """Last slots (B, H, S) of runs of two or more."""
        ends = torch.zeros_like(self.joined)
        ends[..., 1:] = self.joined[..., :-1] & ~self.joined[..., 1:]
        return ends

    def sums(self, values: Tensor) -> Tensor:
        """Sums of `values` (B, H, S[, d]) over each run, by its number."""
        index = self.number if values.dim() == 3 else self.number[..., None].expand_as(values)
        return torch.zeros_like(values).scatter_add(2, index, values)


def _both(of_runs: Tensor, number: Tensor) -> Tensor:
    """Sum (B, H, S) of a slot's run and the next run."""
    following = torch.zeros_like(of_runs)
    following[..., :-1] = of_runs[..., 1:]
    return (of_runs + following).gather(2, number)


class MergesNeighbours(DecodeCompression):
    """A method that merges adjacent slots, the least attended first."""

    window: int = Field(32, ge=1, description="last prompt queries that vote and weigh keys; these tokens always stay")
    sinks: Sinks = 4
    clip: int = Field(0, ge=0, description="most tokens a merged slot counts for in attention; 0: all of them")
    add_values: bool = Field(False, description="add values beyond the clip, as published, instead of averaging them")
    late: bool = Field(False, description=f"later pairs are cheaper: weights are divided by {LATE}")
    heads: Literal["shared", "each"] = Field("shared", description="whether all heads of a layer merge the same pairs")
    space: Space = Field("unrotated", description=SPACE_HELP)

    def merging(self, keys: KeyWeights) -> Pipeline:
        """Window attention, protected sinks and window, merged neighbours with keys weighted by `keys`."""
        late = math.log(512) / 4096 if self.late else 0.0
        settle = PairMerge(
            keys=keys,
            rows=self.window,
            clip=self.clip,
            add_values=self.add_values,
            late=late,
            heads=self.heads,
            space=self.space,
        )
        score = WindowAttention(self.window, 1)
        select = LowestScore(self.sinks, self.window)
        return self.with_decoding(Pipeline(score, select=select, settle=settle, decode=False))


@register
class AsymKV(MergesNeighbours):
    """Merges the least attended neighbours into one slot that counts for all its tokens.

    Adjacent keys are similar and their values are not, so merged slots keep their token count (log mass) and keys are
    averaged by weight. The paper uses squared gradients of the loss; no loss is available here, and the weights are
    what these become if the loss's gradient at the output has no preferred direction.
    """

    name = "asymkv"
    family = "merging"
    title = "AsymKV"

    keys: Literal["gradient", "equal"] = Field("gradient", description="weights of the keys in a merge")

    paper = "https://arxiv.org/abs/2506.05410"
    presets = {
        "paper": Preset(
            "keys by the diagonal of the Hessian, values as a sum with their number",
            {
                "keys": ("gradient", "its Hessian's diagonal, from gradients of the loss there"),
                "clip": (0, "counts are not clipped in the paper"),
                "space": ("unrotated", "keys are stored before rotation"),
            },
            beyond=MERGED_IN_BLOCKS,
        ),
        "code": Preset(
            "the authors' code",
            {
                **SETTINGS_OF_BOTH_CODES,
                "keys": ("gradient", "asymkv/method/asymkv.py, hessian_diagnoal"),
            },
            beyond=MERGED_IN_BLOCKS,
        ),
    }
    reasons = {
        "window": MERGED_WINDOW,
        "sinks": MERGED_SINKS,
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
        "clip": MERGED_CLIP,
        "add_values": MERGED_VALUES,
        "late": "the paper has no such factor",
        "heads": "the code's; text KL on mini at 20 % (5 prompts): .081, per head .071",
        "keys": "the paper's weights without a loss: .081 as above, equal ones .101",
    }

    def pipeline(self) -> Pipeline:
        return self.merging(self.keys)
