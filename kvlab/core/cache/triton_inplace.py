# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""In-place decision of every KV head on a GPU in one launch: update scores, find victim and nearest slot, merge.

One program handles one head of one batch row. It reads the head's slots twice: to add the newest query's attention to
the scores and find the victim, and to find its merge target among the keys. Sums are float32 for every dtype; offsets
are 64-bit because a cache may exceed 2^31 elements. `kvlab.core.cache.layers.dispatch` chooses the decision; the
pipeline in plain torch is the reference. Importing this module needs the package `triton` (extra `kernels`).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kvlab.core.contract.in_place import NEAREST, RESIDUAL, SIMILAR, SPREAD, Work

COLUMNS = 512  # slots whose metadata a program loads at once
NUMBERS = 8192  # elements of a key tile: 64 registers per thread; half of that if it is written too
WARPS = 4


def decide(work: Work) -> None:
    """Carry out `work` in place."""
    (batch, heads, slots, dim), wide = work.keys.shape, triton.next_power_of_2(work.keys.shape[3])
    nothing = work.position  # placeholder for missing columns, never read
    tile = max(16, min(COLUMNS, NUMBERS // (2 if work.kind == SPREAD else 1) // wide))
    _decide[(batch * heads,)](
        work.keys,
        work.values,
        work.position,
        work.mass,
        *(
            nothing if column is None else column
            for column in (
                work.score,
                work.votes,
                work.log_mass,
                work.average,
                work.asked,
                work.residual,
                work.threshold,
            )
        ),
        work.evicted_votes,
        work.tokens_seen,
        work.recent,
        work.sinks,
        heads,
        slots,
        dim,
        work.keys.stride(0),
        work.keys.stride(1),
        work.keys.stride(2),
        work.values.stride(0),
        work.values.stride(1),
        work.values.stride(2),
        work.position.stride(0),
        work.position.stride(1),
        work.mass.stride(0),
        work.mass.stride(1),
        work.decay,
        math.log(work.alpha),
        math.log1p(-work.alpha),
        work.least,
        work.mass_of_votes,
        work.reach,
        work.stream,
        *work.mixes,
        KIND=work.kind,
        VOTES=work.votes is not None,
        OWN_MASS=work.log_mass is not None,
        SUMS=work.sums,
        DRAWN=work.drawn,
        BIAS=work.bias,
        AVERAGED=work.average is not None,
        SCORED=work.score is not None,
        BLOCK_C=min(COLUMNS, triton.next_power_of_2(slots)),
        BLOCK_S=tile,
        BLOCK_D=wide,
        num_warps=WARPS,
    )


_RESIDUAL, _NEAREST, _SIMILAR, _SPREAD = map(tl.constexpr, (RESIDUAL, NEAREST, SIMILAR, SPREAD))


@triton.jit
def _logaddexp(left, right):
    top = tl.maximum(left, right)
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.exp(left - top) + tl.exp(right - top))


@triton.jit
def _finite(logit):
    """Replace missing logits by a very small one."""
    return tl.where((logit != logit) | (logit == float("-inf")), -1e4, logit)


@triton.jit
def _uniform(state, mix_1, mix_2):
    """A number in [0, 1) from a SplitMix64 state; masks make the shifts logical."""
    state = (state ^ ((state >> 30) & ((1 << 34) - 1))) * mix_1
    state = (state ^ ((state >> 27) & ((1 << 37) - 1))) * mix_2
    state = state ^ ((state >> 31) & ((1 << 33) - 1))
    return ((state >> 40) & ((1 << 24) - 1)).to(tl.float32) / 16777216.0


@triton.jit
def _decide(
    keys,
    values,
    position,
    mass,
    score,
    votes,
    log_mass,
    average,
    asked,
    residual,
    threshold,
    evicted_votes,
    tokens_seen,
    recent,
    sinks,
    heads,
    slots,
    dim,
    key_b,
    key_h,
    key_s,
    value_b,
    value_h,
    value_s,
    col_b,
    col_h,
    mass_b,
    mass_h,
    decay,
    log_alpha,
    log_rest,
    least,
    mass_of_votes,
    reach,
    stream,
    mix_0,
    mix_1,
    mix_2,
    KIND: tl.constexpr,
    VOTES: tl.constexpr,
    OWN_MASS: tl.constexpr,
    SUMS: tl.constexpr,
    DRAWN: tl.constexpr,
    BIAS: tl.constexpr,
    AVERAGED: tl.constexpr,
    SCORED: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    b = head // heads
    h = head % heads
    column = b * col_b + h * col_h
    mass_row = b * mass_b + h * mass_h
    now = tl.load(tokens_seen + b)
    newest = now - tl.load(recent + head)
    oldest = tl.load(sinks + head)
    began_at = tl.full((), 0, tl.int64)
    if AVERAGED:
        began_at = tl.load(asked + 2 * head)

    # Add the newest query's attention to the scores and find the lowest evictable one.
    best = tl.full((), float("inf"), tl.float32)
    victim = tl.full((), 0, tl.int32)
    age = tl.full((), 0, tl.int64)  # position of the victim: the older token on ties
    for start in range(0, slots, BLOCK_C):
        s = start + tl.arange(0, BLOCK_C)
        there = s < slots
        at = column + s.to(tl.int64)
        place = tl.load(position + at, mask=there, other=0).to(tl.int64)
        share = tl.load(mass + mass_row + s.to(tl.int64), mask=there, other=0.0)
        if AVERAGED:
            if OWN_MASS:
                log_mass_here = tl.load(log_mass + at, mask=there, other=0.0)
            else:
                log_mass_here = mass_of_votes * tl.log(tl.load(votes + at, mask=there, other=1).to(tl.float32))
            old = tl.load(average + at, mask=there, other=float("-inf")) + log_alpha
            kept = _logaddexp(old, tl.log(share) - log_mass_here + log_rest)
            count = now - tl.maximum(place, began_at)
            tl.store(average + at, kept, mask=there)
            rating = kept - tl.log(1.0 - tl.exp(count.to(tl.float32) * log_alpha)) + log_mass_here
        else:
            rating = tl.load(score + at, mask=there, other=0.0) * decay + share
        if SCORED:
            tl.store(score + at, rating, mask=there)
        rating = tl.where(rating == rating, rating, 0.0)
        free = there & (place >= oldest) & (place < newest)  # invalid slots have positions below all sinks
        if KIND == _RESIDUAL:
            free = free & (tl.load(residual + at, mask=there, other=1) == 0)
        if KIND == _SPREAD:  # the oldest is evicted
            rating = place.to(tl.float32)
        order = tl.where(free, rating, float("inf"))
        low = tl.min(order, 0)
        oldest_low = tl.min(tl.where(order == low, place, now), 0)
        first = tl.min(tl.where((order == low) & (place == oldest_low), s, slots), 0)
        wins = (low < best) | ((low == best) & (oldest_low < age))
        victim = tl.where(wins, first, victim)
        age = tl.where(wins, oldest_low, age)
        best = tl.minimum(low, best)
    tl.debug_barrier()  # stores of other threads of this program are read from here on

    source = victim.to(tl.int64)
    lost = 1.0
    if VOTES:
        lost = tl.load(votes + column + source).to(tl.float32)
    d = tl.arange(0, BLOCK_D)
    wide = d < dim
    key_at = keys + b * key_b + h * key_h + d
    value_at = values + b * value_b + h * value_h + d
    if KIND == _SPREAD:
        began = tl.load(position + column + source).to(tl.int64)
        around = tl.full((), 0.0, tl.float64)
        for start in range(0, slots, BLOCK_C):
            s = start + tl.arange(0, BLOCK_C)
            at = column + s.to(tl.int64)
            behind = tl.load(position + at, mask=s < slots, other=0).to(tl.int64) - began
            takes = (s < slots) & (behind > 0) & (behind <= reach)  # implies valid
            got = tl.load(score + at, mask=takes, other=0.0)
            around += tl.sum(tl.where(takes & (got > 0), got, 0.0).to(tl.float64), 0)
        got = tl.load(score + column + source)
        chance = tl.where(got > 0, got, 0.0) / (around / reach).to(tl.float32)
        chance = tl.where((chance != chance) | (chance == float("inf")), 0.0, tl.minimum(chance, 1.0))
        if DRAWN:
            chance = tl.where(_uniform(h * mix_1 + stream + began * mix_0, mix_1, mix_2) < chance, 1.0, 0.0)
        weight = chance / reach
        span = tl.where(weight > 0, reach, 0)  # nothing is given away
        given = weight * tl.load(value_at + source * value_s, mask=wide, other=0.0).to(tl.float32)
        for start in range(0, slots, BLOCK_S):
            s = start + tl.arange(0, BLOCK_S)
            at = column + s.to(tl.int64)
            behind = tl.load(position + at, mask=s < slots, other=0).to(tl.int64) - began
            takes = (s < slots) & (behind > 0) & (behind <= span)
            if tl.sum(takes.to(tl.int32), 0) > 0:
                each = value_at[None, :] + s.to(tl.int64)[:, None] * value_s
                both = takes[:, None] & wide[None, :]
                sum_ = tl.load(each, mask=both, other=0.0).to(tl.float32) + given[None, :]
                tl.store(each, sum_.to(values.dtype.element_ty), mask=both)
                inherits = takes & (behind == 1)
                if VOTES:
                    more = tl.load(votes + at, mask=inherits, other=0).to(tl.float32) + lost
                    tl.store(votes + at, more.to(votes.dtype.element_ty), mask=inherits)
        lost = tl.where(weight > 0, 0.0, lost)

    if (KIND == _RESIDUAL) | (KIND == _NEAREST) | (KIND == _SIMILAR):
        # Slot with the nearest key: by cosine among all kept slots, or by product among the residual ones. Of those
        # equal to within 2^-16 the oldest, as in `oldest_of_nearest`.
        key = tl.load(key_at + source * key_s, mask=wide, other=0.0).to(tl.float32)
        length = tl.maximum(tl.sqrt(tl.sum(key * key, 0)), 1e-12)
        nearest = tl.full((), float("-inf"), tl.float32)
        closest = tl.full((), float("-inf"), tl.float32)  # the same in steps
        since = tl.full((), 0, tl.int64)
        into = victim
        for start in range(0, slots, BLOCK_S):
            s = start + tl.arange(0, BLOCK_S)
            at = column + s.to(tl.int64)
            place = tl.load(position + at, mask=s < slots, other=-1).to(tl.int64)
            stays = (s < slots) & (place >= 0) & (s != victim)
            if KIND == _RESIDUAL:
                stays = stays & (tl.load(residual + at, mask=s < slots, other=0) != 0)
            if tl.sum(stays.to(tl.int32), 0) > 0:
                each = key_at[None, :] + s.to(tl.int64)[:, None] * key_s
                other = tl.load(each, mask=stays[:, None] & wide[None, :], other=0.0).to(tl.float32)
                like = tl.sum(other * key[None, :], 1)
                if KIND != _RESIDUAL:
                    like = like / tl.maximum(tl.sqrt(tl.sum(other * other, 1)), 1e-12) / length
                steps = tl.where(stays, tl.floor(like * 65536.0 + 0.5), float("-inf"))
                high = tl.max(steps, 0)
                oldest_high = tl.min(tl.where(steps == high, place, now), 0)
                chosen = stays & (steps == high) & (place == oldest_high)
                first = tl.min(tl.where(chosen, s, slots), 0)
                wins = (high > closest) | ((high == closest) & (oldest_high < since))
                into = tl.where(wins, first, into)
                nearest = tl.where(wins, tl.max(tl.where(s == first, like, float("-inf")), 0), nearest)
                since = tl.where(wins, oldest_high, since)
                closest = tl.maximum(high, closest)
        target = into.to(tl.int64)
        here = column + source
        there = column + target
        both_votes = tl.load(votes + there).to(tl.float32) + lost
        if KIND == _RESIDUAL:
            merges = tl.where(into != victim, 1, 0) != 0  # works around the interpreter's handling of comparisons
            share = lost / both_votes
            rated = tl.load(score + here)
            rated_there = tl.load(score + there)
            after = rated + rated_there if SUMS else tl.maximum(rated, rated_there)
            tl.store(score + there, after, mask=merges)
        if KIND == _SIMILAR:
            old = tl.load(threshold + head)
            least = tl.where(old == -2.0, nearest, old + least * (nearest - old))
            tl.store(threshold + head, least)
            merges = tl.where(nearest >= least - 1e-6, 1, 0) != 0
            share = tl.exp(nearest) / (tl.exp(nearest) + 2.718281828459045)
        if KIND == _NEAREST:
            merges = tl.where(nearest >= least, 1, 0) != 0
            if OWN_MASS:
                log_mass_here = tl.load(log_mass + here)
                log_mass_there = tl.load(log_mass + there)
            else:
                log_mass_here = mass_of_votes * tl.log(lost)
                log_mass_there = mass_of_votes * tl.log(both_votes - lost)
            count = now - tl.maximum(tl.load(position + here).to(tl.int64), began_at)
            count_there = now - tl.maximum(tl.load(position + there).to(tl.int64), began_at)
            lacks = tl.log(1.0 - tl.exp(count.to(tl.float32) * log_alpha))
            lacks_there = tl.log(1.0 - tl.exp(count_there.to(tl.float32) * log_alpha))
            logit = _finite(tl.load(average + here) - lacks)
            logit_there = _finite(tl.load(average + there) - lacks_there)
            total = _logaddexp(logit + log_mass_here, logit_there + log_mass_there)
            share = tl.exp(logit + log_mass_here - total)
            mean = share * logit + tl.exp(logit_there + log_mass_there - total) * logit_there
            heavy = total - mean if BIAS else tl.log(both_votes)
            tl.store(average + there, total - heavy + lacks_there, mask=merges)
            if OWN_MASS:
                tl.store(log_mass + there, heavy, mask=merges)
            if SCORED:
                tl.store(score + there, total, mask=merges)
        tl.store(votes + there, both_votes.to(votes.dtype.element_ty), mask=merges)
        old_key = tl.load(key_at + target * key_s, mask=wide, other=0.0).to(tl.float32)
        new_key = tl.where(merges, (1.0 - share) * old_key + share * key, old_key)
        tl.store(key_at + target * key_s, new_key.to(keys.dtype.element_ty), mask=wide)
        value = tl.load(value_at + source * value_s, mask=wide, other=0.0).to(tl.float32)
        old_value = tl.load(value_at + target * value_s, mask=wide, other=0.0).to(tl.float32)
        new_value = tl.where(merges, (1.0 - share) * old_value + share * value, old_value)
        tl.store(value_at + target * value_s, new_value.to(values.dtype.element_ty), mask=wide)
        lost = tl.where(merges, 0.0, lost)

    tl.store(position + column + source, -1)
    tl.store(evicted_votes + head, tl.load(evicted_votes + head) + lost)
