"""Shared by sparse attention: the best slots of a score, slots that are always read, and sets of unequal size."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.contract import MIX, NEVER, Chosen, Held, SparseShare, is_valid, stream_start, uniform_draws
from kvlab.core.stores.quantized_states import dense_states, states_at

FAR = 1e6  # of every coordinate, in float32


def spread_rows(states: Tensor, valid: Tensor, most: int, count: Tensor | None = None) -> Tensor:
    """`most` of the valid states (..., S, d), evenly spaced in order, (..., most, d): k-means starts from them.

    Where only `count` (..., 1) are used, those are evenly spaced. Papers draw the starts at random; these make a run
    reproducible in any batch.
    """
    order = (~valid).to(torch.uint8).argsort(dim=-1, stable=True)
    live = valid.sum(-1, keepdim=True).clamp_min(1)
    number = torch.full_like(live, most) if count is None else count.clamp_min(1)
    rank = ((2 * torch.arange(most, device=states.device) + 1) * live // (2 * number)).clamp_max(live - 1)
    starts = order.gather(-1, rank)[..., None]
    return states.gather(-2, starts.expand(*starts.shape[:-1], states.shape[-1]))


def nearest(states: Tensor, centroids: Tensor) -> Tensor:
    """Number (..., S) of the nearest centroid (..., C, d) of each state (..., S, d), by Euclidean distance."""
    products = states @ centroids.transpose(-1, -2)
    return (centroids.square().sum(-1)[..., None, :] - 2 * products).argmin(-1)


def means_of(states: Tensor, member: Tensor, weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(weighted means (..., count, d), total weights (..., count)) of the states (..., S, d) of each cluster."""
    total = weight.new_zeros(*member.shape[:-1], count).scatter_add_(-1, member, weight)
    sums = states.new_zeros(*member.shape[:-1], count, states.shape[-1])
    sums.scatter_add_(-2, member[..., None].expand_as(states), states * weight[..., None])
    return sums / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None], total


def k_means(states: Tensor, valid: Tensor, count: int, rounds: int) -> tuple[Tensor, Tensor]:
    """(centroids (..., C, d), cluster (..., S)) of the valid states (..., S, d) float32; Lloyd's algorithm.

    A cluster that loses all its states keeps its centroid. States that are not valid get a cluster without influence.
    With fewer states than clusters the other centroids are far away: copies would be told apart by rounding.
    """
    used = valid.sum(-1, keepdim=True).clamp(1, count)
    weight = valid.to(states.dtype)
    unused = torch.arange(count, device=states.device) >= used
    centroids = spread_rows(states, valid, count, used).masked_fill(unused[..., None], FAR)
    for _ in range(rounds):
        means, total = means_of(states, nearest(states, centroids), weight, count)
        centroids = torch.where(total[..., None] > 0, means, centroids)
    return centroids, nearest(states, centroids)


LAYER = 1_000_003
PURPOSE = 7_919


def step_draws(held: Held, per_head: int, purpose: int = 0) -> Tensor:
    """Uniform numbers (B, H, `per_head`, S) in [0, 1) for the slots in this step; others for another `purpose`."""
    batch, heads = held.position.shape[:2]
    number = held.heads
    if number is None:
        number = torch.arange(heads, device=held.position.device).expand(batch, -1)
    # The step is part of the stream's number, so that a token draws anew at each step.
    step = held.tokens_seen.long()[:, None, None] * MIX[2]
    stream_number = number[..., None] * per_head + torch.arange(per_head, device=number.device)
    start = stream_start(held.seed * LAYER + held.layer * PURPOSE + purpose)
    streams = (stream_number * MIX[1] + start + step).flatten(1)[..., None]
    place = held.position[:, :, None].expand(-1, -1, per_head, -1).flatten(1, 2)
    return uniform_draws(0, place, streams).unflatten(1, (heads, per_head))


SLACK = 64  # slots that an index has room for beyond the table, so that it rarely grows


def counts_of(settings: SparseShare, live: Tensor) -> Tensor:
    """Slots (B, H) that the settings read of heads with `live` (B, H) valid ones each, at least 1."""
    asked = (settings.share * live.double() - 1e-9).ceil() if not settings.slots else live.clamp_max(settings.slots)
    return asked.long().clamp_min(1)


def of_group(logits: Tensor) -> Tensor:
    """One score (B, H, 1, S) for the query heads of a group, from their `logits` (B, H, G, S): the log of their mean
    attention.

    Papers choose per query head, of models with as many KV heads. A group shares its slots here, so that each is read
    once; with one query head the order is that of its logits.
    """
    if logits.shape[2] == 1:
        return logits
    return (logits - logits.logsumexp(-1, keepdim=True)).logsumexp(2, keepdim=True)


def always(held: Held, sinks: int = 0, recent: int = 0) -> Tensor:
    """Slots (B, H, S) bool that are read in any case: the step's own token, first and newest tokens of the text."""
    read = torch.zeros(held.position.shape, dtype=torch.bool, device=held.position.device)
    read.scatter_(2, held.newest, True)
    if sinks or recent:
        place = held.position.long()
        near = (place < sinks) | (place >= held.tokens_seen[:, None, None] - recent)
        read |= near & held.valid()
    return read


def best(
    settings: SparseShare, held: Held, score: Tensor, kept: Tensor | None = None, index_bytes: float | Tensor = 0.0
) -> Chosen:
    """The slots with the highest `score` (B, H, 1, S), -inf in free slots; those `kept` (B, H, S) come first.

    With `kept`, for scores that are often equal, such as those of slots with one code: of equal ones the last slots.
    """
    newest = held.newest[:, :, None]
    # At least one; a number above the slots that there are reads all of them.
    most = min(settings.slots or math.ceil(settings.share * held.count - 1e-9), held.count)
    counts = None if held.dense else counts_of(settings, held.live())[:, :, None, None]
    if kept is not None:
        score = score.masked_fill(kept[:, :, None], torch.finfo(score.dtype).max).scatter(3, newest, math.inf)
        top_scores = score.topk(most, dim=-1).values
        least = top_scores[..., -1:] if counts is None else top_scores.gather(3, counts - 1)
        above = score > least
        equal = score == least
        # (`topk` takes any of equal ones: which ones depends on the length of the table.)
        left = (most if counts is None else counts) - above.sum(-1, keepdim=True)
        read = above | (equal & (equal.flip(-1).cumsum(-1).flip(-1) <= left) & (score > NEVER))
        slots = read.to(score.dtype).topk(most, dim=-1).indices
        return Chosen(slots, None if counts is None else weights(read.gather(3, slots)), index_bytes)
    top = score.scatter(3, newest, math.inf).topk(most, dim=-1)
    if counts is None:
        return Chosen(top.indices, None, index_bytes)
    rank = torch.arange(most, device=score.device)
    return Chosen(top.indices, weights((rank < counts) & (top.values > NEVER)), index_bytes)


def weights(read: Tensor) -> Tensor:
    """Log weights: 0 where `read`, else -inf."""
    return torch.zeros(read.shape, device=read.device).masked_fill_(~read, NEVER)


def of_sets(read: Tensor, log_weight: Tensor | None = None, index_bytes: float | Tensor = 0.0) -> Chosen:
    """The slots that are `read` (B, H, U, S) bool, whose number differs between heads; `log_weight` likewise.

    On a CPU the sets are as long as the longest. On a GPU, where reading that length would stop the device, they are
    as long as the table, and weights hide the rest.
    """
    longest = max(int(read.sum(-1).max()), 1) if read.device.type == "cpu" else read.shape[-1]
    slots = read.float().topk(longest, dim=-1).indices
    weight = weights(read) if log_weight is None else log_weight.masked_fill(~read, NEVER)
    return Chosen(slots, weight.gather(3, slots), index_bytes)


def room(tensor: Tensor, count: int, slack: int = SLACK) -> Tensor:
    """`tensor` (B, H, S, ...) with at least `count` slots, and `slack` more where it has to grow; new ones are zero."""
    missing = count - tensor.shape[2]
    if missing <= 0:
        return tensor
    return pad(tensor, (*(0, 0) * (tensor.dim() - 3), 0, missing + slack))


def write_newest(index: Tensor, held: Held, new: Tensor) -> Tensor:
    """`index` (B, H, S, n) with `new` (B, H, 1, n) in the slots of the newest token, in place if there is room."""
    index = room(index, held.count)
    return index.scatter_(2, held.newest[..., None].expand_as(new), new)


SPARE_PAGES = 4  # pages that an index has room for beyond the table


def all_bounds(held: Held, page: int) -> Tensor:
    """Maxima and minima (B, H, pages, 2 d) of each channel of the valid keys of each page; 0 in an empty page."""
    missing = -held.count % page
    keys = pad(dense_states(held.keys), (0, 0, 0, missing))
    valid = pad(held.valid(), (0, missing))
    return _bounds(keys.unflatten(2, (-1, page)), valid.unflatten(2, (-1, page)))


def page_of_newest(held: Held, page: int) -> tuple[Tensor, Tensor]:
    """(page (B, H, 1) of the newest token, its bounds (B, H, 1, 2 d))."""
    newest_page = held.newest // page
    slots = newest_page * page + torch.arange(page, device=newest_page.device)
    inside = slots.clamp_max(held.count - 1)
    valid = is_valid(held.position.gather(2, inside)) & (slots < held.count)
    return newest_page, _bounds(states_at(held.keys, inside)[:, :, None], valid[:, :, None])


def page_logits(logits: Tensor, held: Held, page: int) -> Tensor:
    """`logits` (B, H, G, pages) after soft-capping, with the highest bias of each page: -inf in an empty one."""
    if held.softcap is not None:
        logits = held.softcap * torch.tanh(logits / held.softcap)
    if held.bias is None:
        return logits
    return logits + pad(held.bias, (0, -held.count % page), value=NEVER).unflatten(-1, (-1, page)).amax(-1)


def best_pages(
    settings: SparseShare, held: Held, score: Tensor, page: int, least: int, index_bytes: float | Tensor
) -> Chosen:
    """The slots of the pages with the highest `score` (B, H, 1, pages), that of the newest token first."""
    pages = score.shape[-1]
    score = score.scatter(3, held.newest[:, :, None] // page, math.inf)
    wanted = -(-settings.slots // page) if settings.slots else math.ceil(settings.share * pages - 1e-9)
    most = min(max(wanted, least), pages)
    top = score.topk(most, dim=-1)
    slots = top.indices[..., None] * page + torch.arange(page, device=score.device)
    read = slots < held.count
    if not held.dense:
        rank = torch.arange(most, device=score.device)
        filled = (score > NEVER).sum(-1, keepdim=True)  # holes leave more pages than the slots would fill
        share = (settings.share * filled.double() - 1e-9).ceil()
        asked = torch.full_like(filled, most) if settings.slots else share
        read = read & ((rank < asked.clamp_min(least)) & (top.values > NEVER))[..., None]
    elif held.count % page == 0:
        return Chosen(slots.flatten(3), None, index_bytes)
    return Chosen(slots.clamp_max(held.count - 1).flatten(3), weights(read).flatten(3), index_bytes)


def _bounds(keys: Tensor, valid: Tensor) -> Tensor:
    """(B, H, pages, 2 d) of keys (B, H, pages, page, d)."""
    hidden = ~valid[..., None]
    empty = ~valid.any(-1)[..., None]
    largest = keys.masked_fill(hidden, -math.inf).amax(3)
    least = keys.masked_fill(hidden, math.inf).amin(3)
    return torch.cat([largest, least], -1).masked_fill(empty, 0.0)
