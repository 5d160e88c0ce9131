"""CaM: cache merging of values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.contract import SPREAD, Edges, InPlace, Method, Plan, Preset, ValueShift, View, gather, register
from kvlab.core.contract.numerics import head_streams, stream_start, uniform_draws
from kvlab.core.contract.parts import Capabilities, Scorer, Selector, Settler, capabilities_of
from kvlab.core.contract.pipeline import LowestScore, Oldest, Pipeline
from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.wrapper import Beside, PromptOnly
from kvlab.core.methods.settlers.edges import sum_to_target

ACCUMULATED = "accumulated"
Chance = Literal["mean", "max", "row", "threshold"]
BLOCK = 64
Variant = Literal["code", "simulation", "row", "threshold"]
CHANCES: dict[Variant, Chance] = {"code": "mean", "simulation": "max", "row": "row", "threshold": "threshold"}


@dataclass(frozen=True)
class ValueMerge:
    """Value merging (CaM): victim i adds b * v_i / m to each of the next `reach` = m slots.

    b is 1 with probability p (`bernoulli`), or p itself (`expected`); p is slot i's attention over that of its rivals.
    The paper's formula and the authors' programs define both differently:

    - `mean`: sums over all queries; the mean over the next m slots (the paper's formula, the streaming program);
    - `max`: means over all queries before the newest; the largest of the kept slots and i, without the newest token
      (the benchmark simulation, whose m is the whole recent window: `reach` None). Every column is divided by the same
      number of queries, which cancels;
    - `row`: the newest query only; the mean over the kept slots after i (generation with Llama);
    - `threshold`: sums over all queries before the newest; p is 1 above the mean over the kept slots and i, without the
      newest token, and 0 below (generation with GPT-NeoX).

    Victims are processed in order of position, so a value may pass through later victims, as it would one token at a
    time. Keys are dropped and no slot gains log mass. For lineage and votes a merged slot follows its value into the
    next kept slot; its value weight there is what reached it over all paths. A slot that did not merge is evicted.
    """

    changes_many: ClassVar[bool] = True

    chance: Chance = "mean"
    reach: int | None = 16
    draw: Literal["bernoulli", "expected"] = "bernoulli"
    state: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def capabilities(self) -> Capabilities:
        """Random numbers differ by head index within a row."""
        return Capabilities(
            across_heads=self.draw == "bernoulli",
            fills_budget=True,
            merges=True,
            in_place=self.in_place,
        )

    def in_place(self, score: Scorer, select: Selector) -> InPlace | None:
        """Needs a running sum of attention, oldest-first eviction, and a window of at least `reach` slots."""
        decay = capabilities_of(score).decay
        reach = self.reach
        if decay is None or not isinstance(select, Oldest) or self.chance != "mean" or reach is None:
            return None
        bounds = LowestScore(sinks=select.sinks)

        def fields(view: View) -> Mapping[str, Any] | None:
            within = min(reach, view.slots.valid.shape[-1])
            if select.window(view) < within:
                return None
            seed = 0 if view.generator is None else view.generator.initial_seed()
            return {"reach": within, "drawn": self.draw == "bernoulli", "stream": stream_start(seed)}

        return InPlace(SPREAD, lambda view: bounds.bounds_of(view, view.budget), fields, decay=decay)

    def fitted_to(self, score: Scorer, select: Selector, method_score: Scorer) -> tuple[Scorer, Settler]:
        """Keep accumulated attention beside another score."""
        plain = score.scorer if isinstance(score, PromptOnly) else score
        beside = Beside(score, AccumulatedAttention(), ACCUMULATED)
        return (score if isinstance(plain, AccumulatedAttention) else beside), self

    def settle(self, view: View, select: Selector) -> Plan:
        """Merge values where the draw decides so, evict otherwise."""
        slots = view.slots
        victims = select.victims(view, view.excess(), view.most_excess)
        keep = victims.keep(slots.valid)
        # Without its own reach, a value is spread over all kept slots after it: the recent window.
        longest = min(self.reach or max(view.largest_budget - 1, 1), slots.valid.shape[-1])
        one = victims.certain and victims.index.shape[-1] == 1
        if one and self.chance == "mean" and isinstance(select, Oldest) and select.window(view) >= longest:
            return self._decode_step(view, keep, victims.index, longest)
        reach = (view.budget - 1).clamp(1, longest) if self.reach is None else torch.full_like(view.budget, longest)
        # Slots by position (B, H, R) and which of them exist: from the first victim as far as its value reaches.
        width = slots.valid.shape[-1]
        far = torch.iinfo(slots.position.dtype).max
        start = torch.where(slots.valid & ~keep, slots.position, far).amin(-1, keepdim=True)
        inside = slots.valid & (slots.position >= start)
        in_order = isinstance(select, Oldest)  # then no kept slot is between two victims
        count = min(width, longest + view.most_excess) if in_order or view.most_excess == 1 else width
        order, index = torch.where(inside, slots.position, far).topk(count, dim=-1, largest=False, sorted=True)
        exists = order < far
        leaves = exists & ~gather(keep, index)
        one = view.most_excess == 1 and index.shape[-1] > 1
        few = 1 if one else None
        # Number of following slots, at most `reach`: the newest tokens have fewer, which then share the value.
        from_here = exists.sum(-1, keepdim=True) if one else exists.flip(-1).cumsum(-1).flip(-1)
        after = (from_here - 1).clamp_min(1)
        drawn = self._drawn(view, index, leaves, exists, keep, longest, few)
        weight = drawn / after.minimum(reach[..., None])
        if one:  # decoding: no value passes through a second victim
            # One victim, first in its region: the next slot gets its share along an edge, later ones as a value shift.
            source = index[..., :1]
            heir = index[..., 1:2]
            others = index[..., 2:]
            merged = exists[..., 1:2] & (weight > 0)
            place = torch.arange(2, index.shape[-1], device=index.device)
            gets = exists[..., 2:] & (place <= reach[..., None]) & merged
            value = weight[..., None] * gather(view.slots.values, source).float()
            amount = torch.where(gets[..., None], value, 0.0)
            edges = self._edges(view, source, torch.where(merged, heir, source), merged, weight)
            return Plan(keep, edges, value_shift=ValueShift(others, amount))
        stays = exists & ~leaves
        share = share_reaching(weight, stays, reach, longest)
        gained = spread_forward(gather(slots.values, index).float(), weight, reach, longest)
        # Edges carry what reaches the next kept slot; the remaining gains are value shifts.
        size = index.shape[-1]
        place = torch.arange(size, device=index.device).expand_as(index)
        heir = torch.where(stays, place, size).flip(-1).cummin(-1).values.flip(-1)
        merged = ~stays & (heir < size) & (share > 0)
        heir = torch.where(merged, heir, place)
        values = gather(slots.values, index).float()
        along = torch.where(merged[..., None], share[..., None] * values, 0.0)
        direct = torch.zeros_like(values).scatter_add(2, heir[..., None].expand_as(values), along)
        amount = torch.where(stays[..., None], gained - values - direct, 0.0)
        edges = self._edges(view, index, index.gather(2, heir), merged, share)
        return Plan(keep, edges, value_shift=ValueShift(index, amount))

    def _decode_step(self, view: View, keep: Tensor, source: Tensor, reach: int) -> Plan:
        """Evict the oldest slot of the window, as in most decode steps; at least `reach` slots follow it."""
        slots = view.slots
        start = gather(slots.position, source)
        before = (slots.position <= start).logical_or_(~slots.valid)
        latest = torch.iinfo(slots.position.dtype).max
        order = torch.where(before, view.of_budget(latest, lambda: slots.position.new_full((), latest)), slots.position)
        after = order.topk(reach, dim=-1, largest=False, sorted=True).indices
        received = slots.extra.get(ACCUMULATED, slots.score)
        received = torch.nan_to_num(gather(received, torch.cat([source, after], -1))).clamp_min_(0)
        rival = received[..., 1:].mean(-1, keepdim=True, dtype=torch.float64).float()
        chance = torch.nan_to_num(received[..., :1] / rival, posinf=0.0).clamp_(0, 1)
        if self.draw == "bernoulli":
            chance = self._draw_below(view, start, chance)
        weight = chance / reach
        active = weight > 0
        ends = torch.cat([source, torch.where(active, after[..., :1], source)], -1)
        votes = gather(slots.votes, ends)
        amount = (weight[..., None] * gather(slots.values, source).float()).expand(-1, -1, reach - 1, -1)
        edges = Edges(
            source=source,
            target=ends[..., 1:],
            active=active,
            key_weight=None,
            value_weight=weight,
            self_key_weight=None,
            self_value_weight=view.of_budget("whole", lambda: torch.ones_like(weight)),
            votes_after=votes[..., :1] + votes[..., 1:],
            log_mass_after=None,
            score_after=None,
            similarity=None,
            ends=ends,
            harmless=True,
        )
        lost = votes[..., 0].masked_fill(active[..., 0], 0.0)
        return Plan(keep, edges, value_shift=ValueShift(after[..., 1:], amount), lost=lost)

    def _draw_below(self, view: View, position: Tensor, chance: Tensor) -> Tensor:
        """1 where the token at `position` (B, H, E) draws a number below `chance`, else 0."""
        seed = 0 if view.generator is None else view.generator.initial_seed()
        heads = position.shape[1]
        device = position.device
        streams = view.of_budget("streams", lambda: head_streams(seed, heads, device))
        return (uniform_draws(seed, position, streams) < chance).float()

    def _drawn(
        self, view: View, index: Tensor, leaves: Tensor, exists: Tensor, keep: Tensor, reach: int, few: int | None
    ) -> Tensor:
        """b (B, H, R) of each victim among the first `few`, 0 elsewhere."""
        # Attention (B, H, S) of each slot, from the queries that count.
        if self.chance == "row":
            received = view.layer_pass.last_mass()
        else:
            received = view.slots.extra.get(ACCUMULATED, view.slots.score)
            if self.chance != "mean":
                received = received - view.layer_pass.last_mass()
            received = torch.nan_to_num(received).clamp_min(0)
        # What the attention of the victims is compared with, (B, H, 1 or R).
        position = view.slots.position
        if self.chance == "mean":
            # Mean over the next `reach` existing slots, which come first; for the first slot only if `few` is 1.
            found = torch.where(exists, gather(received, index), 0.0).double()
            if few == 1:
                total, count = (part[..., 1 : 1 + reach].sum(-1, keepdim=True) for part in (found, exists))
                rival = (total / count).float()
            else:
                total = found.cumsum(-1)
                count = exists.long().cumsum(-1)
                size = found.shape[-1]
                last = (torch.arange(size, device=found.device) + reach).clamp_max(size - 1)
                rival = ((total[..., last] - total) / (count[..., last] - count)).float()
        elif self.chance == "row":
            over = keep & (position > gather(position, index[..., :1]))
            rival = received.masked_fill(~over, 0.0).sum(-1, keepdim=True) / over.sum(-1, keepdim=True)
        else:
            others = keep & (position < (view.tokens_seen - 1)[:, None, None])
            if self.chance == "max":
                rival = received.masked_fill(~others, 0.0).amax(-1, keepdim=True)
            else:
                total = received.masked_fill(~others, 0.0).sum(-1, keepdim=True)
                rival = (total + gather(received, index)) / (others.sum(-1, keepdim=True) + 1)
        rival = rival[..., :few]
        index = index[..., :few]
        leaves = leaves[..., :few]
        chance = torch.nan_to_num(gather(received, index) / rival, posinf=0.0)
        chance = (chance > 1).float() if self.chance == "threshold" else chance.clamp(0, 1)
        chance = torch.where(leaves, chance, 0.0)
        if self.draw == "expected":
            return chance
        return self._draw_below(view, gather(view.slots.position, index), chance)

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor, share: Tensor) -> Edges:
        slots = view.slots
        votes = sum_to_target(gather(slots.votes, source), target, active, slots.valid.shape[-1])
        return Edges(
            source=source,
            target=target,
            active=active,
            key_weight=None,
            value_weight=share,
            self_key_weight=None,
            self_value_weight=torch.ones_like(share),
            votes_after=gather(slots.votes, target) + votes,
            log_mass_after=gather(slots.log_mass, target),
            score_after=gather(slots.score, target),
            similarity=None,
        )


def spread_forward(values: Tensor, weight: Tensor, reach: Tensor, longest: int) -> Tensor:
    """(B, H, R, d): u_j = values_j + sum over i in [j - reach, j) of weight_i u_i; `reach` (B, H), at most `longest`.

    Each slot's value, including earlier contributions, is added with `weight` (B, H, R) to the next `reach` slots.
    Solved block by block: a triangular system within a block, the last rows between blocks.
    """
    width = values.shape[2]
    block = max(longest, BLOCK)
    reach = reach[..., None, None]
    solved = values.new_zeros(*values.shape[:2], block, values.shape[3])  # the block before the first
    before = weight.new_zeros(*weight.shape[:2], block)
    parts = []
    for first in range(0, width, block):
        block_values = values[:, :, first : first + block]
        w = weight[:, :, first : first + block]
        size = block_values.shape[2]
        row = torch.arange(size, device=values.device)[:, None]
        gap_in = row - row.T
        gap_out = row - torch.arange(-block, 0, device=values.device)
        inside = torch.where((gap_in > 0) & (gap_in <= reach), w[..., None, :], 0.0)
        arriving = torch.where(gap_out <= reach, before[..., None, :], 0.0) @ solved
        system = torch.eye(size, device=values.device) - inside
        last = torch.linalg.solve_triangular(system, block_values + arriving, upper=False, unitriangular=True)
        parts.append(last)
        solved = pad(last, (0, 0, block - size, 0))
        before = pad(w, (block - size, 0))
    return torch.cat(parts, 2)


def share_reaching(weight: Tensor, ends: Tensor, reach: Tensor, longest: int) -> Tensor:
    """Share (B, H, R) of each slot's own value that reaches the next slot of `ends` (bool), over all paths.

    c_i = weight_i * sum over the next `reach` slots j of (1 if j is that slot, c_j if j comes before it).
    """
    width = weight.shape[-1]
    place = torch.arange(width, device=weight.device).expand_as(weight)
    goal = torch.where(ends, place, width).flip(-1).cummin(-1).values.flip(-1)
    # Reversed in time it is the same recurrence: a slot gets what later slots of its own run lead to.
    back = weight.flip(-1)
    back_goal = goal.flip(-1)
    block = max(longest, BLOCK)
    reach = reach[..., None, None]
    parts = []
    solved = weight.new_zeros(*weight.shape[:2], block)
    solved_goal = goal.new_full((*goal.shape[:2], block), -1)
    for first in range(0, width, block):
        block_weight = back[..., first : first + block]
        mine = back_goal[..., first : first + block]
        size = block_weight.shape[-1]
        row = torch.arange(size, device=weight.device)[:, None]
        gap_in = row - row.T
        gap_out = row - torch.arange(-block, 0, device=weight.device)
        same = mine[..., :, None] == mine[..., None, :]
        inside = torch.where((gap_in > 0) & (gap_in <= reach) & same, block_weight[..., None], 0.0)
        near = (gap_out <= reach) & (mine[..., :, None] == solved_goal[..., None, :])
        arriving = block_weight * torch.where(near, solved[..., None, :], 0.0).sum(-1)
        at_goal = width - 1 - torch.arange(first, first + size, device=weight.device) == mine
        system = torch.eye(size, device=weight.device) - torch.where(at_goal[..., :, None], 0.0, inside)
        start = torch.where(at_goal, 1.0, arriving)
        last = torch.linalg.solve_triangular(system, start[..., None], upper=False, unitriangular=True)[..., 0]
        parts.append(last)
        solved = pad(last, (block - size, 0))
        solved_goal = pad(mine, (block - size, 0), value=-1)
    return torch.cat(parts, -1).flip(-1)


@register
class CaM(Method):
    """Keeps sinks and a recent window; a value that leaves the window is added to the values after it.

    A token is merged with probability of its attention over that of its rivals, which the paper and the authors'
    programs define differently: see `variant`. The default `code` is the paper's formula and the streaming program:
    over the mean of the next `merge` tokens. Values are added, not averaged, so their norm may grow. Keys are dropped.
    Victims after the prompt are judged by the attention of the whole prompt.
    """

    name = "cam"
    family = "merging"
    title = "CaM"

    variant: Variant = Field(
        "code",
        description="a token's rivals: the next tokens' mean (code), the largest kept token (simulation), the window's "
        "mean for the newest query only (row), or merging above the mean (threshold)",
    )
    sinks: int | float = Field(
        4, ge=0, description="first tokens that always stay; below 1: a share of the budget, rounded up"
    )
    merge: int = Field(16, ge=1, description="tokens a value is spread over; in `simulation`, the window")
    draw: Literal["bernoulli", "expected"] = Field(
        "bernoulli", description="merge with probability p (seeded), or always with weight p"
    )

    paper = "https://openreview.net/forum?id=LCTmppB165"
    presets = {
        "paper": Preset(
            "CaM's formula: attention over the mean of the tokens that take the value",
            {
                "variant": ("code", "the formula of the merging probability, as the streaming program computes it"),
                "draw": ("bernoulli", "the formula of the merging mask: Bernoulli"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones."
            ),
        ),
        "code": Preset(
            "the authors' streaming program",
            {
                "variant": ("code", "generate_task/streaming_llm/kv_cache_cam.py, slicev"),
                "sinks": (4, "kv_cache_cam.py, start_size of the class; the script's own default is 1"),
                "merge": (16, "kv_cache_cam.py, merge_num"),
                "draw": ("bernoulli", "kv_cache_cam.py"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones. The authors count them inside the cache."
            ),
        ),
        "simulation": Preset(
            "the authors' simulation for multiple-choice benchmarks",
            {
                "variant": ("simulation", "cam_hf/utils_lm_eval/modify_llama_cam.py"),
                "sinks": (
                    0.5,
                    (
                        "run_lm_eval_harness.py, start_ratio and recent_ratio .1: a tenth of the text each for start "
                        "and recent tokens, rounded up: half of the budget each, at any budget"
                    ),
                ),
                "draw": ("bernoulli", "modify_llama_cam.py"),
            },
            beyond=(
                "The simulation reads one text with masks, token by token: earlier queries also see values merged "
                "later, and a token is judged by the queries before it leaves. Here the prompt is judged once, after "
                "it was read; while decoding the probabilities are the same."
            ),
        ),
        "generation": Preset(
            "the authors' program for generation with Llama",
            {
                "variant": ("row", "cam_hf/utils_hh/modify_llama_cam.py: the newest row over the recent window's mean"),
                "sinks": (
                    0.5,
                    (
                        "run_helm.py, start_ratio and recent_ratio .1: a tenth of the text each for start and recent "
                        "tokens, rounded up: half of the budget each, at any budget"
                    ),
                ),
                "merge": (32, "modify_llama_cam.py, merge_budget"),
                "draw": ("bernoulli", "modify_llama_cam.py"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones. The original merges a token one step before it is masked, and "
                "nothing of the prompt."
            ),
        ),
        "generation-neox": Preset(
            "the authors' program for generation with GPT-NeoX",
            {
                "variant": ("threshold", "cam_hf/utils_hh/modify_gptneox_cam.py, local_cam_mask: merged if above 1"),
                "sinks": (
                    0.5,
                    (
                        "run_helm.py, start_ratio and recent_ratio .1: a tenth of the text each for start and recent "
                        "tokens, rounded up: half of the budget each, at any budget"
                    ),
                ),
                "merge": (32, "modify_gptneox_cam.py, merge_budget"),
            },
            beyond=(
                "If fewer than `merge` tokens follow a victim, they share its value; the authors divide by `merge`. "
                "Positions are the original ones. The original also puts a weighted sum of the prompt's 16 heaviest "
                "old values into the first slot after the start tokens, which fades by 1 % per step; the prompt's "
                "other tokens are masked."
            ),
        ),
    }
    reasons = {
        "variant": "the only one of the authors' programs that frees memory, and it follows the paper's formula",
        "sinks": "the paper leaves it open; 4 is the streaming class's, and StreamingLLM's",
        "merge": "the paper leaves it open; 16 is the streaming program's",
    }

    @field_validator("sinks")
    @classmethod
    def _check_recent(cls, sinks: int | float) -> int | float:
        if isinstance(sinks, float) and sinks >= 1:
            raise ValueError("a number of tokens must be an integer")
        return sinks or 0

    def pipeline(self) -> Pipeline:
        reach = None if self.variant == "simulation" else self.merge
        return Pipeline(
            AccumulatedAttention(),
            select=Oldest(self.sinks),
            settle=ValueMerge(chance=CHANCES[self.variant], reach=reach, draw=self.draw),
        )
