"""Errors of one step of one layer: its slots' result against that of the full cache."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kvlab.core.attention.pass_view import PassSeen
from kvlab.core.attention.slot_attention import probabilities
from kvlab.core.cache.buckets.joined_layer import STATES, measure_slots, per_table
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import Slots
from kvlab.engine.recording.shadow import Answer, Shadow

VALUE_BLOCK = 4096


def answer(slots: Slots, seen: PassSeen, logits: Tensor | None = None) -> Answer:
    """Evaluate the last query of `seen` on the table `slots`; `logits` (1, H, G, 1, S) if already computed."""
    if logits is None:
        logits = seen.logits_at_slots(slots)
    bias = slots.bias()
    if seen.low_rank is not None and seen.has_state:
        share = seen.low_rank.share(seen.query[:, :, -1:], logits, bias)
        return Answer(
            share.slots[0, :, :, 0].mean(1), share.output(slots.values)[0, :, 0], share.state[0, :, :, 0].mean(1)
        )
    mass = probabilities(logits, bias, seen.sinks)[0, :, :, 0]  # (H, G, S)
    return Answer(mass.mean(1), per_table(slots, _given, mass[None])[0].flatten(0, 1))


def _given(slots: Slots, mass: Tensor) -> Tensor:
    """(N, W, G, d) float32: a table's values weighted by `mass` (N, W, G, S or more)."""
    values = slots.values
    blocks = zip(
        mass[..., : values.shape[2]].flatten(0, 1).split(VALUE_BLOCK, -1),
        values.flatten(0, 1).split(VALUE_BLOCK, 1),
        strict=True,
    )
    parts = [share @ part.float() for share, part in blocks]
    return (torch.stack(parts).sum(0) if parts[1:] else parts[0]).unflatten(0, values.shape[:2])


def given_answer(slots: Slots, seen: PassSeen, output: Tensor) -> Answer:
    """The last query's result as attention gave it (`output` (1, Hq, q, d)) in float32, else evaluated again."""
    mass = seen.kept_mass(slots.valid.shape[2])
    left_out = seen.share_read() is not None
    if mass is not None and (left_out or output.dtype == torch.float32):  # what was not read cannot be evaluated again
        return Answer(mass[0], output[0, :, 0].float())
    return answer(slots, seen, seen.kept_logits(slots.valid.shape[2]))


def mass_columns(slots: Slots, columns: Tensor, shadow: Shadow, given: Answer, truth: Answer) -> dict[str, Tensor]:
    """kept_mass, merged_true_mass, merged_mass, sag, regret, output_error; each (H,). `columns` as `shadow.columns`.

    A low-rank state counts as one merged slot of all dropped tokens: their true mass is merged, not regret.
    """
    owner = shadow.owned()
    heads = truth.mass.shape[0]
    # true mass by owning slot; the last column holds dropped tokens
    by_name = truth.mass.new_zeros(heads, shadow.capacity + 1).scatter_add_(1, owner, truth.mass)
    # Cloned because the columns are kept for many steps, and a view would keep the whole tensor.
    own = by_name.gather(1, columns)
    dropped = by_name[:, shadow.capacity].clone()
    shared = slots.valid[0] & (slots.votes[0] > 1)
    merged_true = (own * shared).sum(-1)
    merged = (given.mass * shared).sum(-1)
    kept = (own * (slots.valid[0] ^ shared)).sum(-1)
    if given.state_mass is not None:
        merged_true = merged_true + dropped
        merged = merged + given.state_mass
        dropped = torch.zeros_like(dropped)
    return {
        "kept_mass": kept,
        "merged_true_mass": merged_true,
        "merged_mass": merged,
        "sag": merged_true - merged,
        "regret": dropped,
        "output_error": relative_error(given.output, truth.output, heads),
    }


def unread_mass(slots: Slots, columns: Tensor, read: Tensor, shadow: Shadow, truth: Answer) -> Tensor:
    """(H,) true mass of tokens in slots that this step left out; `read` (1, H, S): share of query heads that read."""
    by_name = truth.mass.new_zeros(len(truth.mass), shadow.capacity + 1).scatter_add_(1, shadow.owned(), truth.mass)
    return (by_name.gather(1, columns) * slots.valid[0] * (1 - read[0])).sum(-1)


def relative_error(given: Tensor, true: Tensor, heads: int) -> Tensor:
    """||given - true|| / ||true|| of (Hq, d) outputs, mean over each KV head's group; (H,).

    A zero true output has no relative error unless `given` is exact; NaN where no query head of the group has one.
    """
    off = (given - true).norm(dim=-1)
    size = true.norm(dim=-1)
    error = (off / size).masked_fill((size == 0) & (off > 0), torch.nan).masked_fill(off == 0, 0.0)
    return error.view(heads, -1).nanmean(-1)


def rows_by_position(mass: Tensor, columns: Tensor, shadow: Shadow) -> Tensor:
    """(H, T): scatter each slot's mass to its position, `columns` as from `shadow.columns`."""
    row = mass.new_zeros(mass.shape[0], shadow.capacity + 1)
    return row.scatter_(1, columns, mass)[:, : shadow.tokens]


def lengths(slots: Slots) -> Tensor:
    """(2, H, S) float32 norms of keys and of values. Batch of one."""
    norm = partial(torch.linalg.vector_norm, dim=-1, dtype=torch.float32)
    return torch.stack([measure_slots(slots, name, norm)[0] for name in STATES])


def non_finite(slots: Slots, taken: Tensor | None = None) -> Tensor:
    """(H, S) bool: valid slots with an infinite or NaN key, value or log mass. Batch of one.

    `taken` are their `lengths` if already computed.
    """
    # One sum instead of a test per number: finite exactly when all parts are, except for overflow, which also counts.
    if taken is None:
        keys, values = (measure_slots(slots, name, partial(torch.sum, dim=-1, dtype=torch.float32)) for name in STATES)
        total = keys + values + slots.log_mass
    else:
        total = slots.log_mass + taken.sum(0)
    return (slots.valid & ~torch.isfinite(total))[0]


def growth(before: Tensor, plan: Plan, after: Tensor) -> dict[str, Tensor]:
    """`key_growth` and `value_growth`, (H,) each: largest norm of a slot over that of the longest of its parts.

    From the `lengths` before and after `plan`; 1 where nothing grew. Means of keys never grow, added values and
    rescaled keys may.
    """
    longest = before
    if plan.edges is not None:
        parts = (plan.edges.source, plan.edges.target, plan.edges.active)
        source, target, active = (part.expand(2, -1, -1) for part in parts)
        sources = before.gather(2, source).masked_fill(~active, 0.0)
        longest = before.scatter_reduce(2, target, sources, "amax")
    ratio = after / longest.clamp_min(torch.finfo(torch.float32).tiny)
    keys, values = ratio.masked_fill(~plan.keep, 1.0).amax(-1).clamp_min(1.0)
    return {"key_growth": keys, "value_growth": values}
