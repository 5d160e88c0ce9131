# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""In-place decision kernels compiled with numba: one loop over slots instead of many torch operations.

One loop finds the slot to evict and predicts the next victim: attention, which reads all keys anyway, also multiplies
with that slot's key, so that its nearest slot is known without reading the keys again. If the prediction is wrong the
keys are read. Running averages stay in torch, whose logarithms are faster. Formulas are those of the pipeline.

Importing this module needs the package `numba` (extra `cpu`), which caches compiled code next to the source or in the
user's cache folder.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numba import prange

from kvlab.core.cache.kernels.numba_threads import SLOTS_EACH as SLOTS_EACH
from kvlab.core.cache.kernels.numba_threads import Walk, alone, part
from kvlab.core.contract.in_place import ABSORB, EVICT, NEAREST, NOT_YET, POOL, RESIDUAL, SIMILAR, SPREAD
from kvlab.core.contract.inplace_work import Work
from kvlab.core.contract.log_averages import NEGLIGIBLE, NEVER_SEEN, missing, note_average
from kvlab.core.contract.slot_columns import FREE, TINY

MOST_COUNTED = 2**20  # queries


def decide(work: Work) -> None:
    """Carry out `work` in place on contiguous float32 tensors."""
    rows = work.rows
    if work.average is None:
        assert work.score is not None
        (work.score if work.decay == 1.0 else work.score.mul_(work.decay)).add_(work.mass)
    now, heads = work.tokens_seen.numpy(), work.position.shape[1]
    # An empty array instead of None: numba compiles separate code per argument type.
    lengths, products = rows.get("lengths"), work.products
    if lengths is None:
        lengths = np.empty((len(rows["position"]), 0), np.float32)
    common = (
        rows["keys"], rows["values"], rows["position"], rows.get("votes"), rows["evicted_votes"],
        now, rows["recent"], rows["sinks"], heads, rows["left"], rows["merged"], lengths,
    )  # fmt: skip
    beside = rows["beside"] if products is None else products.numpy().reshape(rows["position"].shape)
    ahead = rows["guess"], products is not None, beside, 1 / work.scaling
    if work.kind == SIMILAR:
        _similar(*common, *ahead, rows["score"], rows["threshold"], work.least)
    elif work.kind == RESIDUAL:
        _residual(*common, rows["score"], rows["residual"], work.sums)
    elif work.kind in (EVICT, ABSORB):
        _evict(*common, rows["score"])
        if work.absorb is not None:
            evicted = (work.flat[name].index_select(0, work.victims) for name in ("keys", "values"))
            work.absorb(*(states.view(*work.evicted_votes.shape, 1, -1) for states in evicted))
    elif work.kind == POOL:
        _pool(*common, rows["score"], rows["covers"], rows["generation"])
    elif work.kind == SPREAD:
        _spread(*common, rows["score"], work.reach, work.drawn, work.stream, *work.mixes)
    else:
        assert work.average is not None
        log_mass = work.log_mass
        if log_mass is None:
            assert work.votes is not None
            log_mass = work.votes.log().mul_(work.mass_of_votes)
        note_average(work.average, work.mass, log_mass, work.alpha)
        masses = log_mass.numpy().reshape(rows["position"].shape)
        own = rows.get("score"), masses, rows["average"], rows["asked"], _missing_mass(work.alpha)
        _nearest(*common, *ahead, *own, work.least, work.bias)
    work.left, work.merged, work.looks_ahead = work.victims, work.joined, work.kind in (NEAREST, SIMILAR)


def ready(work: Work) -> None:
    """Compile the kernels for a decision like `work` and for the refill that follows; carries out `work`."""
    decide(work)
    position, votes = work.counted
    counts(position, position if votes is None else votes, votes is None, work.joined.numpy())
    flat = {name: column.numpy() for name, column in work.flat.items()}
    new, place = np.zeros((work.evicted_votes.numel(), 2), np.float32), work.tokens_seen.numpy()
    states, heads = (flat["keys"], flat["values"], flat["position"]), np.arange(len(new))
    lengths = flat["lengths"] if "lengths" in flat else np.empty(0, np.float32)
    fill(*states, lengths, work.victims.numpy(), new, new, place, len(new), heads)


@alone
def fill(keys, values, position, lengths, free, new_keys, new_values, places, heads, numbers):
    """Write new tokens to the slots `free` (R,) of all (R * S[, d]); `numbers` (R,) index the layer's heads.

    New keys and values are (B * H, d), `places` are positions per row (B,), `heads` is their number per row.
    """
    for r in range(len(free)):
        slot, head = free[r], numbers[r]
        keys[slot], values[slot], position[slot] = new_keys[head], new_values[head], places[head // heads]
        if len(lengths) > 0:
            lengths[slot] = _length(new_keys[head])


@alone
def counts(position, votes, one_each, merged):
    """Counts (3, R) float32: merged heads, valid slots of each (R, S), most votes of a slot."""
    counted = np.zeros((3, len(position)), dtype=np.float32)
    for r in range(len(position)):
        live, most = 0, 0
        for s in range(position.shape[1]):
            if position[r, s] >= 0:
                live += 1
                most = max(most, 1 if one_each else votes[r, s])
        counted[0, r], counted[1, r], counted[2, r] = merged[r], live, most
    return counted


@lru_cache
def _missing_mass(alpha: float) -> np.ndarray:
    """Missing mass (N,) float32 of an average over 0, 1, .. queries, up to where it is negligible."""
    enough = math.ceil(math.log(NEGLIGIBLE) / math.log(alpha)) if alpha > 0 else 1
    return missing(torch.arange(min(enough, MOST_COUNTED) + 1), alpha).numpy()


@part
def _number(rated):
    """Replace NaN by 0."""
    return np.float32(0) if rated != rated else rated


@part
def _find_victim(rating, position, newest, oldest, residual):
    """Victim of one head: the evictable slot with the lowest rating (S,), the older token on ties.

    Also returns the likely next victim, when one more token has left the recent window.
    """
    found, lowest, second, higher = -1, np.float32(np.inf), -1, np.float32(np.inf)
    for s in range(len(position)):
        rated = _number(np.float32(rating[s]))
        if found >= 0 and second >= 0 and rated > lowest and rated >= higher:
            continue  # most slots: a predictable branch
        # Invalid slots have positions below all sinks.
        if position[s] < oldest or position[s] > newest or (residual is not None and residual[s]):
            continue
        older = rated == lowest and position[s] < position[found]
        if position[s] < newest and (found < 0 or rated < lowest or older):
            if found >= 0 and (second < 0 or lowest < higher):
                second, higher = found, lowest
            found, lowest = s, rated
        elif second < 0 or rated < higher:
            second, higher = s, rated
    return max(found, 0), max(second, 0)


@part
def _product(left, right):
    total = np.float32(0)
    for d in range(len(left)):
        total += left[d] * right[d]
    return total


@part
def _length(key):
    return max(np.float32(math.sqrt(_product(key, key))), np.float32(TINY))


@part
def _find_nearest(keys, lengths, position, source, brought, products, scale):
    """(slot, cosine) of the valid slot whose key (S, d) is most similar to that of `source`; the first on ties.

    If `brought`, `products` (S,) with all keys, `scale` times too small, are used instead of computing them.
    """
    found, highest, key, held = source, np.float32(-np.inf), keys[source], len(lengths) > 0
    for s in range(len(position)):
        if position[s] < 0 or s == source:
            continue
        like = products[s] * np.float32(scale) if brought else _product(keys[s], key)
        like /= lengths[s] if held else _length(keys[s])
        if like > highest:
            found, highest = s, like
    return found, highest / (lengths[source] if held else _length(key))


@part
def _merge(keys, values, lengths, target, source, share):
    """Merge `source` into `target` with weight `share`: key and value (S, d), and the key length."""
    for states in (keys, values):
        own, given = states[target], states[source]
        for d in range(len(own)):
            own[d] += np.float32(share) * (given[d] - own[d])
    if len(lengths) > 0:
        lengths[target] = _length(keys[target])


@alone
def _evict(keys, values, position, votes, evicted_votes, now, recent, sinks, heads, left, merged, lengths, score):
    slots = position.shape[1]
    for r in range(len(position)):
        source, _ = _find_victim(score[r], position[r], now[r // heads] - recent[r], sinks[r], None)
        position[r, source] = FREE
        left[r] = r * slots + source
        evicted_votes[r] += 1 if votes is None else votes[r, source]


@part
def _cheapest_pair(position, covers, place, now, newest, oldest):
    """The older and younger of two adjacent slots in the text that cover the fewest tokens for their age.

    At least two slots must be evictable. `place` is scratch space with one entry per position.
    """
    place[oldest:newest] = FREE
    for s in range(len(position)):
        if oldest <= position[s] < newest:
            place[position[s]] = s
    older, younger, before, most = 0, 0, FREE, np.float32(-1)
    for p in range(oldest, newest):
        slot = place[p]
        if slot == FREE:
            continue
        if before != FREE:
            worth = np.float32(now - p) / np.float32(np.int64(covers[before]) + covers[slot])
            if worth > most:
                older, younger, most = before, slot, worth
        before = slot
    return older, younger


@alone
def _pool(
    keys, values, position, votes, evicted_votes, now, recent, sinks, heads, left, merged, lengths,
    score, covers, generation,
):  # fmt: skip
    slots, place = position.shape[1], np.empty(now.max() + 1, np.int32)
    for r in range(len(position)):
        seen, time = position[r], now[r // heads]
        older, younger = _cheapest_pair(seen, covers[r], place, time, time - recent[r], sinks[r])
        stays, source = older, younger
        if _number(score[r, older]) < _number(score[r, younger]):  # the older one stays on ties
            stays, source = younger, older
        covers[r, stays] += covers[r, source]
        generation[r, stays] = max(generation[r, stays], generation[r, source]) + 1
        seen[source] = FREE
        left[r] = r * slots + source
        evicted_votes[r] += 1


@part
def _uniform(state, mix_1, mix_2):
    """A number in [0, 1) from a SplitMix64 state; masks make the shifts logical."""
    state = (state ^ ((state >> 30) & ((1 << 34) - 1))) * mix_1
    state = (state ^ ((state >> 27) & ((1 << 37) - 1))) * mix_2
    state = state ^ ((state >> 31) & ((1 << 33) - 1))
    return np.float32((state >> 40) & ((1 << 24) - 1)) / np.float32(16777216)


@part
def _merge_probability(score, position, began, reach, source):
    """Attention of the victim over the mean of the next `reach` tokens, clamped to [0, 1]."""
    around = 0.0
    for s in range(len(position)):
        if position[s] > began and position[s] - began <= reach and score[s] > 0:
            around += score[s]
    chance = max(score[source], np.float32(0)) / np.float32(around / reach)
    return np.float32(0) if chance != chance or chance == np.inf else min(chance, np.float32(1))


@alone
def _spread(
    keys, values, position, votes, evicted_votes, now, recent, sinks, heads, left, merged, lengths,
    score, reach, drawn, stream, mix_0, mix_1, mix_2,
):  # fmt: skip
    slots = position.shape[1]
    for r in range(len(position)):
        seen = position[r]
        source, _ = _find_victim(seen, seen, now[r // heads] - recent[r], sinks[r], None)  # the oldest is evicted
        began = np.int64(seen[source])
        chance = _merge_probability(score[r], seen, began, reach, source)
        if drawn:
            state = (r % heads) * mix_1 + stream + began * mix_0
            chance = np.float32(1) if _uniform(state, mix_1, mix_2) < chance else np.float32(0)
        seen[source] = FREE
        left[r], merged[r] = r * slots + source, chance > 0
        if not merged[r]:  # nothing is given away
            evicted_votes[r] += votes[r, source]
            continue
        weight = chance / np.float32(reach)
        for s in range(slots):
            if seen[s] > began and seen[s] - began <= reach:
                for d in range(values.shape[2]):
                    values[r, s, d] += weight * values[r, source, d]
                if seen[s] - began == 1:
                    votes[r, s] += votes[r, source]


@Walk
def _similar(
    keys, values, position, votes, evicted_votes, now, recent, sinks, heads, left, merged, lengths,
    guess, brought, products, scale, score, threshold, least,
):  # fmt: skip
    slots = position.shape[1]
    for r in prange(len(position)):
        seen, own = position[r], lengths[r]
        source, then = _find_victim(score[r], seen, now[r // heads] - recent[r], sinks[r], None)
        seen[source] = FREE
        right = brought and guess[r] == r * slots + source
        target, like = _find_nearest(keys[r], own, seen, source, right, products[r], scale)
        guess[r] = r * slots + then
        old = threshold[r]
        threshold[r] = like if old == NOT_YET else old + np.float32(least) * (like - old)
        left[r], merged[r] = r * slots + source, like >= threshold[r] - np.float32(1e-6)
        if merged[r]:
            votes[r, target] += votes[r, source]
            _merge(keys[r], values[r], own, target, source, 1 / (1 + math.exp(1 - like)))
        else:
            evicted_votes[r] += votes[r, source]


@Walk
def _residual(
    keys, values, position, votes, evicted_votes, now, recent, sinks, heads, left, merged, lengths,
    score, residual, sums,
):  # fmt: skip
    slots = position.shape[1]
    for r in prange(len(position)):
        seen = position[r]
        source, _ = _find_victim(score[r], seen, now[r // heads] - recent[r], sinks[r], residual[r])
        seen[source] = FREE
        target, highest = source, np.float32(-np.inf)
        for s in range(slots):
            if residual[r, s] and seen[s] >= 0:
                like = _product(keys[r, s], keys[r, source])
                if like > highest:
                    target, highest = s, like
        left[r], merged[r] = r * slots + source, target != source
        if merged[r]:
            votes[r, target] += votes[r, source]
            both, other = score[r, target], score[r, source]
            score[r, target] = both + other if sums else max(both, other)
            share = votes[r, source] / votes[r, target]
            _merge(keys[r], values[r], lengths[r], target, source, share)
        else:
            evicted_votes[r] += votes[r, source]


@part
def _finite(logit):
    return np.float32(NEVER_SEEN) if logit != logit or logit == -np.inf else logit


@Walk
def _nearest(
    keys, values, position, votes, evicted_votes, now, recent, sinks, heads, left, merged, lengths,
    guess, brought, products, scale, score, log_mass, average, asked, missing_mass, least, bias,
):  # fmt: skip
    slots, most = position.shape[1], len(missing_mass) - 1
    for r in prange(len(position)):
        seen, own, time, rating = position[r], lengths[r], now[r // heads], np.empty(slots, dtype=np.float32)
        for s in range(slots):
            count = min(max(time - max(np.int64(seen[s]), asked[r, 0]), 0), most)
            rating[s] = average[r, s] - missing_mass[count] + log_mass[r, s]
        if score is not None:
            score[r] = rating
        source, then = _find_victim(rating, seen, time - recent[r], sinks[r], None)
        seen[source] = FREE
        right = brought and guess[r] == r * slots + source
        target, like = _find_nearest(keys[r], own, seen, source, right, products[r], scale)
        guess[r], left[r], merged[r] = r * slots + then, r * slots + source, like >= least
        if not merged[r]:
            evicted_votes[r] += votes[r, source]
            continue
        given, taking = _finite(rating[source]), _finite(rating[target])
        share = 1 / (1 + math.exp(taking - given))
        total = max(given, taking) + math.log1p(math.exp(-abs(given - taking)))
        votes[r, target] += votes[r, source]
        if bias:
            bare = taking - log_mass[r, target]
            heavy = total - (bare + share * (given - log_mass[r, source] - bare))
        else:
            heavy = math.log(votes[r, target])
        lack = min(max(time - max(np.int64(seen[target]), asked[r, 0]), 0), most)
        average[r, target], log_mass[r, target] = missing_mass[lack] + (total - heavy), heavy
        if score is not None:
            score[r, target] = total
        _merge(keys[r], values[r], own, target, source, share)
