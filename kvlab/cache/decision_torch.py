"""One decision of a table in plain torch, all in place: what `decision_kernel` does on a GPU, in the fewest operations.

For a CPU, where a decision of the pipeline takes longer to put together than to work out. The formulas are the
pipeline's own; only slots, plans and edges are left out. All heads of all rows are one list, and a slot is named by its
place among the slots of all of them, so that every column is read and written as one row of numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.cache.decision_work import SIMILAR, Work
from kvlab.methods.columns import FREE, key_lengths, looked, there
from kvlab.methods.scorers.attention.ema import corrected, missing, note_average
from kvlab.methods.selectors.lowest_score import stays
from kvlab.methods.settlers.groups import products_with
from kvlab.methods.settlers.merging.cosine_merge import judge_one
from kvlab.methods.settlers.merging.nearest_merge import join_one


def decide(work: Work) -> None:
    """Do `work`, of kind `NEAREST` or `SIMILAR`, on contiguous tensors; what it changes is changed in place."""
    rating, log_mass, rows = _rated(work)
    source = _leaving(work, rating)
    key = work.by_slot("keys").index_select(0, source)  # (B * H, d)
    target, likeness = _nearest(work, source, key)
    both = torch.stack([source, target])  # (2, B * H)
    votes = _take(work.votes, both)
    new: dict[str, Tensor] = {}
    if work.kind == SIMILAR:
        merges, share = _judged(work, likeness)
        new["votes"] = votes[0] + votes[1]
    else:
        merges = likeness >= work.least
        lacking = missing(_take(rows, target)[:, None, None], work.alpha)[:, 0, 0]
        pairs = _take(log_mass, both), _take(rating, both), votes
        joined = join_one(*pairs, lacking, work.bias, 0)
        share, new["votes"], new["average"] = joined.share[0], joined.votes[0], joined.average[0]
        new["log_mass"], new["score"] = joined.log_mass[0], joined.score[0]

    # What does not merge goes into itself as it leaves, which harms nobody.
    into, work.merged = torch.where(merges, target, source), merges
    weight, value = share[:, None], work.by_slot("values").index_select(0, both.view(-1)).float()
    given, own = value.chunk(2)
    new["values"] = own.lerp(given, weight)
    other = work.by_slot("keys").index_select(0, target).float()
    new["keys"] = other.lerp(key.float(), weight).to(key.dtype)
    if work.lengths is not None:
        new["lengths"] = key_lengths(new["keys"])
    for name, numbers in new.items():
        if getattr(work, name) is not None:
            column = work.by_slot(name)
            column.index_copy_(0, into, numbers if numbers.dtype == column.dtype else numbers.to(column.dtype))
    work.dropped.view(-1).add_(votes[0].masked_fill(merges, 0))


def _rated(work: Work) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(B, H, S): the scores, which the newest query has entered; log mass and queries seen where they count in them."""
    if work.average is None:
        assert work.score is not None
        score = work.score if work.decay == 1.0 else work.score.mul_(work.decay)
        return score.add_(work.mass), None, None
    assert work.asked is not None
    log_mass = work.log_mass
    if log_mass is None:
        assert work.votes is not None
        log_mass = work.votes.log().mul_(work.mass_of_votes)
    note_average(work.average, work.mass, log_mass, work.alpha)
    rows = looked(work.position, work.asked[..., :1], work.tokens_seen[:, None, None])
    rating = corrected(work.average, rows, work.alpha).add_(log_mass)
    return (rating if work.score is None else work.score.copy_(rating)), log_mass, rows


def _leaving(work: Work, rating: Tensor) -> Tensor:
    """(B * H,): the slot of each head that may leave and has the lowest rating; it is valid no more."""
    protected = stays(work.position, work.tokens_seen, work.recent, work.sinks)
    order = torch.where(protected, work.last, rating.nan_to_num(nan=0.0))  # what is not valid stands before all sinks
    source = work.begins + order.argmin(-1).view(-1)
    work.by_slot("position").index_fill_(0, source, FREE)
    return source


def _nearest(work: Work, source: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """(slot with the most similar key, their cosine), (B * H,), of all valid ones."""
    lengths = key_lengths(work.keys) if work.lengths is None else work.lengths
    products = products_with(key.view(*work.keys.shape[:2], 1, -1), work.keys, lengths)[:, :, 0]
    target = work.begins + torch.where(there(work.position), products, work.never).argmax(-1).view(-1)
    if key.dtype == torch.float32:
        return target, products.take(target) / lengths.take(source)
    exact = (key.float() * work.by_slot("keys").index_select(0, target).float()).sum(-1)
    return target, exact / (lengths.take(source) * lengths.take(target))


def _judged(work: Work, likeness: Tensor) -> tuple[Tensor, Tensor]:
    """(which merge, their weight), (B * H,); the thresholds move."""
    assert work.threshold is not None
    own = work.threshold.view(-1)
    merges, threshold, share = judge_one(likeness, own, work.least)
    own.copy_(threshold)
    return merges, share


def _take(column: Tensor | None, index: Tensor) -> Tensor:
    assert column is not None
    return column.take(index)
