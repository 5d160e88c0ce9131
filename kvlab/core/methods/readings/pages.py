"""Pages of consecutive slots: bounds of their keys, and the slots of the best pages."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from kvlab.core.contract.reading import Chosen, Held, PartReading
from kvlab.core.contract.slot_columns import is_valid
from kvlab.core.contract.view import NEVER
from kvlab.core.methods.readings.selection import room, weights
from kvlab.core.stores.quantized_states import dense_states, states_at

SPARE_PAGES = 4  # pages that an index has room for beyond the table


def all_bounds(held: Held, page: int) -> Tensor:
    """Maxima and minima (B, H, pages, 2 d) of each channel of the valid keys of each page; 0 in an empty page."""
    missing = -held.count % page
    keys = pad(dense_states(held.keys), (0, 0, 0, missing))
    valid = pad(held.valid(), (0, missing))
    return _bounds(keys.unflatten(2, (-1, page)), valid.unflatten(2, (-1, page)))


def newest_bounds(bounds: Tensor, held: Held, page: int) -> Tensor:
    """`bounds` after a token was written: those of its page are taken again from its keys, so that they stay tight."""
    bounds = room(bounds, -(-held.count // page), SPARE_PAGES)
    own, new = page_of_newest(held, page)
    return bounds.scatter_(2, own[..., None].expand_as(new), new)


def page_of_newest(held: Held, page: int) -> tuple[Tensor, Tensor]:
    """(page (B, H, 1) of the newest token, its bounds (B, H, 1, 2 d))."""
    own = held.newest // page
    slots = own * page + torch.arange(page, device=own.device)
    inside = slots.clamp_max(held.count - 1)
    valid = is_valid(held.position.gather(2, inside)) & (slots < held.count)
    return own, _bounds(states_at(held.keys, inside)[:, :, None], valid[:, :, None])


def upper_bounds(query: Tensor, bounds: Tensor, held: Held) -> Tensor:
    """Upper bounds (B, H, G, pages) of the logits of `query` (B, H, G, d) at each page, without the bias."""
    query = query.float()
    both = torch.cat([query.clamp_min(0.0), query.clamp_max(0.0)], -1)
    logits = both @ bounds.float().transpose(-1, -2) * held.scaling
    return cap_logits(logits, held)


def cap_logits(logits: Tensor, held: Held) -> Tensor:
    """Logits after soft-capping."""
    return logits if held.softcap is None else held.softcap * torch.tanh(logits / held.softcap)


def page_bias(held: Held, page: int) -> Tensor | None:
    """The highest bias (B, H, 1 or G, pages) of each page, -inf in an empty one; None if there is no bias."""
    if held.bias is None:
        return None
    return pad(held.bias, (0, -held.count % page), value=NEVER).unflatten(-1, (-1, page)).amax(-1)


def best_pages(
    reading: PartReading, held: Held, score: Tensor, page: int, least: int, index_bytes: float | Tensor
) -> Chosen:
    """The slots of the pages with the highest `score` (B, H, 1, pages), that of the newest token first."""
    pages = score.shape[-1]
    score = score.scatter(3, held.newest[:, :, None] // page, math.inf)
    wanted = -(-reading.slots // page) if reading.slots else math.ceil(reading.share * pages - 1e-9)
    most = min(max(wanted, least), pages)
    top = score.topk(most, dim=-1)
    slots = top.indices[..., None] * page + torch.arange(page, device=score.device)
    read = slots < held.count
    if not held.dense:
        rank = torch.arange(most, device=score.device)
        filled = (score > NEVER).sum(-1, keepdim=True)  # holes leave more pages than the slots would fill
        asked = (reading.share * filled.double() - 1e-9).ceil() if not reading.slots else torch.full_like(filled, most)
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
