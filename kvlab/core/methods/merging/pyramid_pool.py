"""PyramidPool: pool the oldest tokens in windows, with smaller budgets in deeper layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.contract import Edges, Method, Plan, Preset, ValueShift, View, gather, proportional, register
from kvlab.core.contract.parts import Capabilities, Selector, protected_slots
from kvlab.core.contract.pipeline import EqualHeads, LowestScore, Pipeline
from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.recency import Recency
from kvlab.core.methods.settlers import log_mass
from kvlab.core.methods.settlers.edges import max_to_target, sum_to_target

Pooling = Literal["mean", "max", "max-norm", "best"]
Repool = Literal["graded", "literal"]
GENERATION = "generation"
COVERS = "covers"
ROUNDING = 1e-6  # relative, of a length in float32


@dataclass(frozen=True)
class Linear(EqualHeads):
    """L_k = L_0 (1 + k / (m - 1) * (1 / beta - 1)) with L_0 = 2 b / (1 + 1 / beta), for an average of b slots per
    layer (section 3.1).

    The first layer gets `beta` times what the last gets, and the layers sum to m * b exactly. The paper prints k / m,
    which never reaches L_0 / beta (`printed` keeps that shape, scaled to the same total), and a wrong total. No layer
    gets more than the prompt's tokens, unless every layer does.
    """

    beta: float = 4.0
    printed: bool = False

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        last = num_layers if self.printed else max(num_layers - 1, 1)
        shares = [1 + layer / last * (1 / self.beta - 1) for layer in range(num_layers)]
        return proportional(shares, average * num_layers, 1, max(tokens, average))


def join_pairs(exists: Tensor, size: Tensor, age: Tensor, need: Tensor, most: int) -> "Windows":
    """Groups that leave `need` (B, H) fewer slots, by joining neighbours with the smallest size for their age.

    All else is (B, H, E) by rank, oldest first: `exists` marks the first ones, `size` is the tokens a slot covers,
    `age` the tokens since it. Joining two neighbours costs (sum of their sizes) / (age of the younger). In equilibrium
    sizes are proportional to age, as in an exponential histogram: a slot is as blurred as it is far away. A round joins
    disjoint pairs, including the cheapest; `most` bounds `need` on the host, and 1 takes one round.
    """
    rank = torch.arange(exists.shape[-1], device=exists.device)
    group = rank.expand(exists.shape).clone()
    passes = torch.zeros(exists.shape, device=exists.device)
    weight = torch.ones(exists.shape, device=exists.device)
    size = torch.where(exists, size, 0.0)
    age = age.float().clamp_min(1)
    left = exists.sum(-1)
    while most > 0:  # at least most + 1 slots exist, so that a round joins half of the missing pairs
        most = most - max(most // 2, 1)
        # Every second pair is a candidate, such that the cheapest is one: which slots join the next younger one.
        cost = pad((size[..., :-1] + size[..., 1:]) / age[..., 1:], (0, 1), value=torch.inf)
        cost = cost.masked_fill(rank >= (left - 1)[..., None], torch.inf)
        odd = cost.argmin(-1, keepdim=True) % 2
        cost = cost.masked_fill(rank % 2 != odd, torch.inf)
        place = cost.argsort(dim=-1, stable=True).argsort(-1)
        joins = (place < need[..., None]) & cost.isfinite()
        second = pad(joins[..., :-1], (1, 0))
        pooled = (joins | second).gather(2, group)
        passes = passes + pooled
        weight = torch.where(pooled, weight / 2, weight)
        moved = rank - second.cumsum(-1)
        group = moved.gather(2, group)
        size = torch.zeros_like(size).scatter_add(2, moved, size)
        age = torch.full_like(age, torch.inf).scatter_reduce(2, moved, age, "amin")
        removed = second.sum(-1)
        left = left - removed
        need = need - removed
    return Windows(torch.where(exists, group, rank), torch.where(exists, passes, 0.0), weight)


@dataclass(frozen=True)
class Windows:
    """Result for the E oldest slots, by rank (B, H, E), oldest first."""

    group: Tensor  # int64: slots of one group become one slot
    passes: Tensor  # float32: how often each was pooled
    plain_weight: Tensor  # float32: its share of its group if every pass took a plain mean


def pool_windows(exists: Tensor, need: Tensor, window: int) -> Windows:
    """Groups that leave at least `need` (B, H) fewer slots, by pooling the oldest in windows of `window`.

    `exists` (B, H, E) marks the first ranks. A pass pools as many whole windows as needed, oldest first; if that was
    not enough, the next pass pools the result. Once fewer than `window` are left, the oldest need + 1 are pooled.
    """
    rank = torch.arange(exists.shape[-1], device=exists.device)
    group = rank.expand(exists.shape).clone()
    passes = torch.zeros(exists.shape, device=exists.device)
    weight = torch.ones(exists.shape, device=exists.device)
    left = exists.sum(-1)
    # After these passes any number of slots is small enough, or one. A pass that is not the last pools every whole
    # window; with at most one window left, the next is the last.
    slots = exists.shape[-1]
    while slots > 1:
        # The worst case up to `slots`: itself, or the largest number that is one short of whole windows.
        beside = (slots + 1) // window * window - 1
        slots = max(number // window + number % window for number in (slots, beside)) if slots > window else 1
        whole = torch.minimum((need + window - 2) // (window - 1), left // window)
        short = (whole == 0) & (need > 0)
        size = torch.where(short, torch.minimum(need + 1, left), window).clamp_min(1)
        count = torch.where(short, (left > 1).long(), whole)
        pooled = group < (count * size)[..., None]
        passes = passes + pooled
        weight = torch.where(pooled, weight / size[..., None], weight)
        removed = count * (size - 1)
        group = torch.where(pooled, group // size[..., None], group - removed[..., None])
        left = left - removed
        need = (need - removed).clamp_min(0)
    return Windows(torch.where(exists, group, rank), torch.where(exists, passes, 0.0), weight)


@dataclass(frozen=True)
class Pool:
    """Pool the oldest unprotected slots in windows of `window` (PyramidPool, section 3.2).

    Pooled slots are pooled again; `generation` counts how often. While decoding, `literal` pools the oldest windows
    until `window` slots of the budget are free; since the oldest are always the pools themselves, they end in one or
    two. `graded` joins two neighbours per excess slot, those with the fewest tokens for their age (see `graded`), so
    that older text becomes coarser. A prompt is always pooled in windows.

    - `mean`: average keys and values, each slot weighted by its votes (`weighted`) or equally (the paper's mean of
      means). The position is that of the slot with the window's middle token.
    - `max`: element-wise maximum of keys and of values, at the same position. For rotated keys this has no meaning of
      its own; it is what a pooling layer does.
    - `max-norm`, `best`: keep the slot with the longest key, or with the highest score, and evict the others of its
      window: no merging, so their votes are dropped; `covers` counts the tokens it represents.

    One slot of the budget is reserved for pools; a budget of a single slot evicts.
    """

    changes_many: ClassVar[bool] = True
    needs_protection: ClassVar[bool] = True

    pooling: Pooling = "mean"
    window: int = 4
    weighted: bool = True
    mass: log_mass.Mass = log_mass.AS_PUBLISHED
    space: log_mass.Space = "rotated"
    repool: Repool = "graded"

    @property
    def keeps_one(self) -> bool:
        """Whether a pool is one of its tokens."""
        return self.pooling in ("best", "max-norm")

    @property
    def state(self) -> Mapping[str, float]:
        """Slot state: how often a slot was pooled, and the tokens it covers if votes do not say."""
        return {GENERATION: 0} | ({COVERS: 1} if self.keeps_one else {})

    @property
    def capabilities(self) -> Capabilities:
        """If a pool is one of its tokens, the others are evicted and nothing merges."""
        return Capabilities(merges=not self.keeps_one, mass_of_votes=self.mass.of_votes)

    def settle(self, view: View, select: Selector) -> Plan:
        """Pool, or evict within windows."""
        slots = view.slots
        # One slot of the budget is reserved for pools.
        room = view.of_budget(self, lambda: (view.budget - 1).clamp_min(1))
        safe = protected_slots(select, replace(view, budget=room))
        graded = self.repool == "graded"
        one = graded and view.phase == "decode" and view.most_excess == 1
        # Each head exceeds its budget by at most one and has two unprotected slots.
        if one and self.keeps_one and view.smallest_budget > 1 and isinstance(select, LowestScore):
            return self._decode_step(view, slots.valid > safe)
        safe = safe & slots.valid
        places = (view.budget - safe.sum(-1)).clamp_min(0)
        free = slots.valid & ~safe
        aim = places if graded else torch.minimum((places - self.window).clamp_min(1), places)
        need = torch.where(view.excess() > 0, free.sum(-1) - aim, 0).clamp_min(0)
        pooled = torch.where(places > 0, need, 0)
        if graded and view.phase == "decode":
            find = self._pair if one and free.shape[-1] > 1 else self._pairs
            index, exists, pools = find(view, free, pooled)
        else:
            # The oldest in windows, each of which frees window - 1 slots; a head needs at most its excess and a window.
            windows = -(-(view.most_excess + self.window) // (self.window - 1))
            index = _by_age(view, free, min(windows * self.window, free.shape[-1]))
            exists = gather(free, index)
            pools = pool_windows(exists, pooled, self.window)
        evicted = exists & ((places == 0) & (need > 0))[..., None]
        exists = exists & ~evicted
        width = index.shape[-1]
        rank = torch.arange(width, device=index.device)
        # Rank (B, H, E) of the slot that each one ends in: that with its group's middle token, or with the best value.
        if self.keeps_one:
            value, slack = self._value(view, index)
            best = exists & (value >= max_to_target(value, pools.group, exists, width) * (1 - slack))
            chosen = -max_to_target(-rank.expand_as(index).float(), pools.group, best, width)
            stays = torch.where(exists, chosen.nan_to_num(posinf=0, neginf=0).long(), rank)
        else:
            votes = torch.where(exists, gather(view.slots.votes, index), 0.0)
            until = votes.cumsum(-1)
            start = -max_to_target(votes - until, pools.group, exists, width)
            half = until - start >= sum_to_target(votes, pools.group, exists, width) / 2
            middle = -max_to_target(-rank.expand_as(index).float(), pools.group, exists & half, width)
            stays = torch.where(exists, middle.nan_to_num(posinf=0).long(), rank)
        leaves = exists & (stays != rank)
        removed = leaves | evicted
        removed_slots = torch.zeros_like(view.slots.valid).scatter(2, index, removed)
        # Slot state: how often a slot was pooled, and the tokens that it covers.
        extra = view.slots.extra
        passes = pools.passes + gather(extra[GENERATION], index)
        generation = max_to_target(passes, stays, exists, width)
        columns = {GENERATION: _put(extra[GENERATION], index, torch.where(exists, generation, passes))}
        if self.keeps_one:
            before = gather(extra[COVERS], index)
            covers = torch.where(exists, sum_to_target(before, stays, exists, width), before)
            columns[COVERS] = _put(extra[COVERS], index, covers)
        plan = Plan(keep=view.slots.valid & ~removed_slots, extra=columns)
        if self.keeps_one:
            return replace(plan, lost=removed.sum(-1))
        edges = self._edges(view, index, index.gather(2, stays), leaves, pools.plain_weight)
        if self.pooling == "mean":
            return replace(plan, edges=edges)
        # Element-wise maxima in place of weighted sums.
        pooled = exists & (stays == rank) & (max_to_target(leaves.float(), stays, exists, width) > 0)
        keys = _maximum_of_group(gather(view.slots.keys, index).float(), stays, exists)
        values = _maximum_of_group(gather(view.slots.values, index).float(), stays, exists)
        amount = torch.where(pooled[..., None], values, 0.0)
        return replace(plan, edges=replace(edges, key_shift=keys), value_shift=ValueShift(index, amount))

    def _decode_step(self, view: View, free: Tensor) -> Plan:
        """`_pair` and its plan in fewer operations, if one of the two slots is kept as it is.

        With budget B at most B - 1 slots are protected, so a head with B + 1 slots has two others.
        """
        slots = view.slots
        kind = view.slots.position.dtype
        never = view.of_budget(("late", kind), lambda: view.budget.new_full((), torch.iinfo(kind).max, dtype=kind))
        position, order = torch.where(free, slots.position, never).sort(dim=-1)
        size = gather(self._size(view), order)
        # Inverted cost; missing slots count as younger than any token, so they are chosen last.
        worth = (view.tokens_seen[:, None, None].to(kind) - position[..., 1:]) / (size[..., :-1] + size[..., 1:])
        first = worth.argmax(-1, keepdim=True)
        pair = gather(order, torch.cat([first, first + 1], -1))
        value, slack = self._value(view, pair)
        short = (slots.live() > view.budget)[..., None]
        younger = value[..., :1] < value[..., 1:] * (1 - slack)  # the older one stays on ties
        target, source = torch.where(younger, pair.flip(-1), pair).chunk(2, -1)
        keep = slots.valid.scatter(2, source, gather(slots.valid, source) > short)
        count = gather(slots.extra[COVERS], pair)
        passes = gather(slots.extra[GENERATION], pair)
        covers = torch.where(short, count[..., :1] + count[..., 1:], gather(slots.extra[COVERS], target))
        generation = torch.where(short, passes.amax(-1, keepdim=True) + 1, gather(slots.extra[GENERATION], target))
        extra = {COVERS: covers, GENERATION: generation}
        columns = {name: _put(slots.extra[name], target, value) for name, value in extra.items()}
        return Plan(keep=keep, extra=columns, lost=short[..., 0])

    def _pair(self, view: View, free: Tensor, need: Tensor) -> tuple[Tensor, Tensor, Windows]:
        """`_pairs` if no head needs (B, H) more than one: the cheapest two neighbours, or the two oldest slots."""
        never = torch.iinfo(view.slots.position.dtype).max
        position, order = view.slots.position.masked_fill(~free, never).sort(dim=-1)
        size = gather(self._size(view), order)
        exists = position < never
        age = (view.tokens_seen[:, None, None] - position[..., 1:]).clamp_min(1)
        cost = ((size[..., :-1] + size[..., 1:]) / age).masked_fill(~exists[..., 1:], torch.inf)
        short = (need > 0)[..., None]
        first = torch.where(short, cost.argmin(-1, keepdim=True), 0)
        rank = torch.arange(2, device=order.device)
        both = first + rank
        joined = short.expand(both.shape)
        pools = Windows(torch.where(joined, 0, rank), joined.float(), 1 - joined / 2)
        return gather(order, both), gather(exists, both), pools

    def _size(self, view: View) -> Tensor:
        """Tokens (B, H, S) a slot covers."""
        return view.slots.extra[COVERS] if self.keeps_one else view.slots.votes

    def _pairs(self, view: View, free: Tensor, need: Tensor) -> tuple[Tensor, Tensor, Windows]:
        """Slots by age with neighbours joined, reduced to those that are pooled or evicted; which exist; pools."""
        slots = view.slots
        order = _by_age(view, free, free.shape[-1])
        exists = gather(free, order)
        size = gather(self._size(view), order)
        age = view.tokens_seen[:, None, None] - gather(slots.position, order)
        pools = join_pairs(exists, size, age, need, view.most_excess)
        meant = exists & ((pools.passes > 0) | (need == 0)[..., None])
        rank = torch.arange(order.shape[-1], device=order.device)
        width = min(2 * view.most_excess, order.shape[-1])
        few = torch.where(meant, rank, order.shape[-1]).topk(width, dim=-1, largest=False, sorted=True).indices
        group = gather(pools.group, few)
        place = (group[..., 1:] != group[..., :-1]).cumsum(-1)
        narrow = Windows(pad(place, (1, 0)), gather(pools.passes, few), gather(pools.plain_weight, few))
        return gather(order, few), gather(meant, few), narrow

    def _value(self, view: View, index: Tensor) -> tuple[Tensor, float]:
        """(values by which the slots `index` (B, H, E) are chosen, relative tolerance for ties).

        Models that normalize keys make all lengths equal: rounding must not choose among them.
        """
        keys = view.slots.keys
        if self.pooling == "best":
            return gather(view.slots.score, index).nan_to_num(), 0.0
        return gather(keys, index).float().norm(dim=-1).nan_to_num(), max(ROUNDING, torch.finfo(keys.dtype).eps / 8)

    def _edges(self, view: View, source: Tensor, target: Tensor, active: Tensor, plain: Tensor) -> Edges:
        slots = view.slots
        width = view.slots.valid.shape[-1]
        votes = gather(slots.votes, source)
        own_votes = gather(slots.votes, target)
        total = own_votes + sum_to_target(votes, target, active, width)
        if self.pooling == "max":
            weight = target_weight = torch.zeros_like(total)
        elif self.weighted:
            weight = votes / total
            target_weight = own_votes / total
        else:
            weight = plain
            target_weight = 1 - sum_to_target(plain, target, active, width)
        parts = log_mass.Parts(
            source, target, active, weight, target_weight, log_mass.turns(view, source, target, self.space)
        )
        score = torch.maximum(
            gather(slots.score, target), max_to_target(gather(slots.score, source), target, active, width)
        )
        return Edges(
            source=source,
            target=target,
            active=active,
            key_weight=weight,
            value_weight=weight,
            self_key_weight=target_weight,
            self_value_weight=target_weight,
            votes_after=total,
            log_mass_after=self.mass.after(view, parts, total),
            score_after=score,
            similarity=None,
            turn=parts.turn,
            kind="pool",
        )


def _put(column: Tensor, index: Tensor, value: Tensor) -> Tensor:
    return column.scatter(2, index, value.to(column.dtype))


def _by_age(view: View, free: Tensor, count: int) -> Tensor:
    """The oldest slots (B, H, count) of those in `free`, oldest first."""
    position = view.slots.position
    order = position.masked_fill(~free, torch.iinfo(position.dtype).max)
    return order.topk(count, dim=-1, largest=False).indices


def _maximum_of_group(states: Tensor, stays: Tensor, exists: Tensor) -> Tensor:
    """Element-wise maximum (B, H, E, d) over all slots that end in the same slot; 0 if there are none."""
    index = stays[..., None].expand_as(states)
    room = torch.full_like(states, -torch.inf)
    most = room.scatter_reduce(2, index, states.masked_fill(~exists[..., None], -torch.inf), "amax").gather(2, index)
    return torch.nan_to_num(most, neginf=0.0)


@register
class PyramidPool(Method):
    """Repeatedly pools windows of the oldest tokens into single slots, with budgets that fall with depth.

    Variant `fixed` weights a pooled slot by all its tokens when it is pooled again, and gives the last layer 1 / beta
    of the first; `paper` is as printed. Both sum to the requested budget. Pooling `best` and `max-norm` keep one token
    of each window and evict the others; `mean` and `max` merge. A pooled slot counts as one token in attention, as
    published; `mass` changes that for means.
    """

    name = "pyramid-pool"
    family = "pooling"
    title = "PyramidPool"

    variant: Literal["fixed", "paper"] = Field("fixed", description="weights of repeated means, and end of the slope")
    pooling: Literal["mean", "max", "max-norm", "best"] = Field("best", description="what a window becomes")
    window: int = Field(4, ge=2, description="slots pooled into one")
    repool: Repool = Field(
        "graded", description="while decoding: pool neighbours with the fewest tokens for their age, or oldest windows"
    )
    beta: float = Field(4.0, ge=1, description="ratio of the first layer's budget to the last layer's")
    sinks: int = Field(4, ge=0, description="first tokens that are never pooled")
    recent: float = Field(0.5, gt=0, lt=1, description="share of the budget for recent tokens that are not pooled")
    mass: log_mass.MassRule = Field("none", description=log_mass.MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: log_mass.Space = Field("rotated", description=log_mass.SPACE_HELP)

    presets = {
        "paper": Preset(
            "the setting of table 2, with figure 6's pyramid",
            {
                "variant": ("paper", "section 3.1 prints the slope k / m; section 3.2 averages the pairs of a window"),
                "repool": (
                    "literal",
                    "section 3.2: a fixed window merges the least recent tokens as more are generated",
                ),
                "sinks": (4, "table 2, figures 6 to 8"),
                "mass": ("none", "section 3.2 gives a pooled pair no weight of its own"),
                "space": ("rotated", "section 5.2 leaves positions of pooled pairs to later work"),
                "pooling": ("best", "table 2, figures 7 and 8; figure 6 compares it with mean and max"),
                "beta": (4.0, "figure 6; table 2 does not say"),
            },
            beyond=(
                "The paper's budget is the first layer's (256 to 4096), 64 on average in table 2; it gives neither "
                "the window nor the number of recent tokens that are not pooled."
            ),
        ),
        "figure-8": Preset(
            "the rectangular cache of figure 8",
            {
                "variant": ("paper", "section 3.1 prints the slope k / m; section 3.2 averages the pairs of a window"),
                "repool": (
                    "literal",
                    "section 3.2: a fixed window merges the least recent tokens as more are generated",
                ),
                "sinks": (4, "table 2, figures 6 to 8"),
                "mass": ("none", "section 3.2 gives a pooled pair no weight of its own"),
                "space": ("rotated", "section 5.2 leaves positions of pooled pairs to later work"),
                "pooling": ("best", "figure 8"),
                "beta": (1.0, "figure 8: pyramid compression ratio 1"),
            },
            beyond=(
                "The paper's budget is the first layer's (256 to 4096), 64 on average in table 2; it gives neither "
                "the window nor the number of recent tokens that are not pooled."
            ),
        ),
    }
    reasons = {
        "variant": (
            "as printed a recent window has the same weight as all it is pooled with, and the last layer never gets "
            "L_0 / beta"
        ),
        "pooling": "mini: best .163 / .101 / .048, mean .291 / .211 / .124, max .825 / .532 / .177",
        "window": "not given; mini: 2 .164 / .117 / .045, 4 .163 / .101 / .048, 8 .169 / .110 / .048",
        "repool": (
            "literal pooling of the oldest ends in two pools, one of which covers most of the text; mini: graded .163 "
            "/ .101 / .048, literal .200 / .108 / .044. For means literal is better (.237 / .185 / .085, graded .291 "
            "/ .211 / .124): the slots of lost pools go to recent tokens"
        ),
        "beta": "figure 6's; 1 is better on mini (.147 / .088 / .041), but is no pyramid",
        "recent": "not given; mini: .25 .168 / .101 / .062, .5 .163 / .101 / .048, .75 .190 / .115 / .049",
        "alpha": "zsmerge's; only used with mass `alpha`",
    }

    @model_validator(mode="after")
    def _check_pooling(self) -> "PyramidPool":
        if self.pooling != "mean" and (self.mass != "none" or self.space != "rotated"):
            raise ValueError("mass and space need pooling 'mean': add pooling=mean")
        return self

    def pipeline(self) -> Pipeline:
        fixed = self.variant == "fixed"
        return Pipeline(
            AccumulatedAttention() if self.pooling == "best" else Recency(),
            Linear(beta=self.beta, printed=not fixed),
            LowestScore(sinks=self.sinks, recent=self.recent),
            Pool(
                pooling=self.pooling,
                window=self.window,
                weighted=fixed,
                mass=log_mass.Mass(self.mass, self.alpha),
                space=self.space,
                repool=self.repool,
            ),
        )
