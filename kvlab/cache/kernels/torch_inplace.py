"""One decision of a table in plain torch, all in place: what `decision_kernel` does on a GPU, in the fewest operations.

For a CPU, where a decision of the pipeline takes longer to put together than to work out. The formulas are the
pipeline's own; only slots, plans and edges are left out. All heads of all rows are one list, and a slot is named by its
place among the slots of all of them, so that every column is read and written as one row of numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.methods.core.decision_formulas import join_one, judge_one, stays
from kvlab.methods.core.in_place import SIMILAR
from kvlab.methods.core.inplace_work import Work
from kvlab.methods.core.log_averages import missing, note_average
from kvlab.methods.core.slot_columns import key_lengths, looked, there


def decide(work: Work) -> None:
    """Do `work`, of kind `NEAREST` or `SIMILAR`, on contiguous tensors; what it changes is changed in place."""
    flat, (both, source, target) = work.flat, work.pair
    rating, log_mass, lacking = _rated(work)
    _leave(work, rating)
    key = flat["keys"].index_select(0, source)  # (B * H, d)
    likeness = _nearest(work, key)
    votes = flat["votes"].index_select(0, both)  # of those that leave, then of their nearest ones
    lost, own_votes = votes.chunk(2)
    new: dict[str, Tensor] = {}
    if work.kind == SIMILAR:
        merges, share = _judged(work, likeness)
        new["votes"] = lost + own_votes
    else:
        assert log_mass is not None and lacking is not None
        merges = likeness >= work.least
        joined = join_one(log_mass.take(both), rating.take(both), votes, lacking.take(target), work.bias)
        share, new["votes"], new["average"] = joined.share, joined.votes, joined.average
        new["log_mass"], new["score"] = joined.log_mass, joined.score

    # What does not merge goes into itself as it leaves, which harms nobody.
    into, work.left, work.merged = torch.where(merges, target, source), source, merges
    weight, values, keys = share[:, None], flat["values"], flat["keys"]
    value, own = values.index_select(0, both).chunk(2)
    new["values"] = _mixed(own, value, weight)
    new["keys"] = _mixed(keys.index_select(0, target), key, weight)
    if work.lengths is not None:
        new["lengths"] = key_lengths(new["keys"])
    for name, numbers in new.items():
        if name in flat:
            column = flat[name]
            column.index_copy_(0, into, numbers if numbers.dtype == column.dtype else numbers.to(column.dtype))
    work.dropped.view(-1).add_(torch.where(merges, work.none, lost))


def _mixed(own: Tensor, given: Tensor, weight: Tensor) -> Tensor:
    """(B * H, d): keys or values of which `given` has `weight` (B * H, 1), worked out in float32."""
    return own.float().lerp(given.float(), weight).to(own.dtype)


def _rated(work: Work) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The scores (B, H, S), which the newest query has entered, and what they are made of beside an average.

    That is the log mass and what the averages lack for the queries that slots have not seen.
    """
    if work.average is None:
        assert work.score is not None
        score = work.score if work.decay == 1.0 else work.score.mul_(work.decay)
        return score.add_(work.mass), None, None
    assert work.asked is not None
    log_mass = noted(work, work.average)
    lacking = missing(looked(work.position, work.asked[..., :1], work.tokens_seen[:, None, None]), work.alpha)
    rating = (work.average - lacking).add_(log_mass)
    return (rating if work.score is None else work.score.copy_(rating)), log_mass, lacking


def noted(work: Work, average: Tensor) -> Tensor:
    """The log mass (B, H, S), with which the newest query has entered the running `average`, in place."""
    log_mass = work.log_mass
    if log_mass is None:
        assert work.votes is not None
        log_mass = work.votes.log().mul_(work.mass_of_votes)
    note_average(average, work.mass, log_mass, work.alpha)
    return log_mass


def _leave(work: Work, rating: Tensor) -> None:
    """Find the slot of each head that may leave and has the lowest rating; it is valid no more."""
    protected = stays(work.position, work.tokens_seen, work.recent, work.first)
    # What is not valid stands before all sinks, and what is no number counts as 0.
    order = torch.where(protected, work.last, rating.nan_to_num(nan=0.0))
    source = torch.add(work.begins, order.argmin(-1).view(-1), out=work.pair[1])
    work.flat["position"].index_copy_(0, source, work.nowhere)


def _nearest(work: Work, key: Tensor) -> Tensor:
    """The cosine (B * H,) of each `key` (B * H, d) and the most similar one of the valid slots, which is found."""
    both, source, target = work.pair
    lengths = key_lengths(work.keys) if work.lengths is None else work.lengths
    # In this order, with strides of a row, a product with one row takes a third of the time on a CPU.
    products = torch.bmm(work.by_head, key[:, None].mT).view(lengths.shape)
    products = products.div_(lengths) if products.dtype == lengths.dtype else products / lengths
    if work.full:
        products.view(-1).index_copy_(0, source, work.nobody)
    else:
        products = torch.where(there(work.position), products, work.never)
    torch.add(work.begins, products.argmax(-1).view(-1), out=target)
    if key.dtype == torch.float32:
        return products.take(target).div_(lengths.take(source))
    exact = (key.float() * work.flat["keys"].index_select(0, target).float()).sum(-1)
    return exact / lengths.take(both).view(2, -1).prod(0)


def _judged(work: Work, likeness: Tensor) -> tuple[Tensor, Tensor]:
    """(which merge, their weight), (B * H,); the thresholds move."""
    assert work.threshold is not None
    own = work.threshold.view(-1)
    merges, threshold, share = judge_one(likeness, own, work.least, begun=work.merged is not None)
    own.copy_(threshold)
    return merges, share
