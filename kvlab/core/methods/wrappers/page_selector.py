"""Selector wrapper that keeps or evicts whole pages: what a serving engine that frees memory by pages could hold."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvlab.core.contract import parts
from kvlab.core.contract.pipeline import Pipeline, Uniform
from kvlab.core.contract.view import AttentionPass, Slots, View
from kvlab.core.errors import UserError

TOGETHER = -2  # key of the worth of each slot to all layers, among their statistics; -1 is a model-wide allocator's


@dataclass(frozen=True)
class WholePages(parts.Wrapper):
    """Rank pages of `length` tokens from the start of the text, and evict the lowest until the rest fits the budget.

    A page's rank follows from its slots: `any` takes the best place of a slot in the order in which `inner` evicts, so
    that a page stays if `inner` would keep any of it, at the largest budget whose pages fit; `mean` and `max` take the
    mean or the largest score. Ties prefer the higher mean, then the newer page. With `heads` "union" heads share one
    order: best over heads, or scores summed over heads. With "model" heads of all layers do, by their scores alone, as
    `inner` of one layer knows no other (`EqualEverywhere`).

    What `inner` protects always stays, and pages with protected slots come first, the newest first of all; hence the
    last page, which is partial, is whole. Where the budget does not hold all of their slots, only the protected ones
    of the others stay. Every other page is whole or gone. A head may end below its budget, by less than a page.
    """

    leaves_room: ClassVar[bool] = True

    inner: parts.Selector
    length: int
    rule: parts.PageRule = "any"
    heads: parts.PageHeads = "union"

    @property
    def capabilities(self) -> parts.Capabilities:
        inner = parts.capabilities_of(self.inner)
        together = inner.across_heads or self.heads != "each"
        return replace(inner, across_heads=together)

    def victims(self, view: View, excess: Tensor, most: int, barred: Tensor | None = None) -> parts.Victims:
        """The lowest pages, without protected slots: at least `excess` (B, H) slots, and less than a page more."""
        slots = view.slots
        # Place (B, H, S) of each slot in the inner selector's order, lowest first; -1 for slots it never evicts.
        plainly = replace(view, certain=False, in_lots=True)
        found = self.inner.victims(plainly, slots.live(), slots.valid.shape[-1], barred)
        rank = torch.arange(found.index.shape[-1], device=found.index.device).expand_as(found.index)
        nowhere = torch.full_like(slots.valid, -1, dtype=torch.int64)
        # inactive victims may name a slot that an active one names too
        places = nowhere.scatter_reduce(2, found.index, torch.where(found.active, rank, -1), "amax")
        safe = slots.valid & (places < 0)
        best, mean = self._of_pages(view, places, safe)
        # Slot indices (B, H, S), best page first, slots of a page together, invalid ones last.
        order = slots.in_text().flip(-1)
        for value in (mean, best):
            order = order.gather(2, value.gather(2, order).argsort(stable=True, dim=-1, descending=True))
        page = _segments(slots, order, self.length)
        costs = (slots.valid & ~safe).gather(2, order).long().cumsum(-1)
        until = torch.zeros_like(costs).scatter_reduce(2, page, costs, "amax").gather(2, page)
        room = slots.live() - excess - safe.sum(-1)
        fits = until <= room[..., None]
        leaves = slots.valid.gather(2, order) & ~safe.gather(2, order) & ~fits
        count = min(most + self.length - 1, order.shape[-1])
        rank = torch.arange(order.shape[-1], device=order.device)
        last, which = torch.where(leaves, rank, -1).topk(count, dim=-1)
        return parts.Victims(order.gather(2, which), last >= 0)

    def _of_pages(self, view: View, places: Tensor, safe: Tensor) -> tuple[Tensor, Tensor]:
        """(best, mean) of each slot's page (B, H, S), of its slots' worth to its head or to all that share the page.

        Infinite where one of them is protected.
        """
        slots = view.slots
        here = slots.valid
        protected = safe if self.heads == "each" else safe.any(1, keepdim=True).expand_as(safe)
        if self.heads == "model":
            # Over the slots of all layers, once for the model.
            if TOGETHER not in view.statistics:
                scores = [view.statistics[layer].to(places.device) for layer in sorted(view.statistics)]
                worth = torch.stack(scores).nan_to_num(nan=0.0).float()  # (L, B, H, S)
                if self.rule == "any":
                    free = places >= 0
                    order = worth.masked_fill(~free, torch.inf).argsort(stable=True, dim=-1)
                    worth = torch.where(free, order.argsort(-1), -1).float()
                view.statistics[TOGETHER] = torch.stack([worth.amax((0, 2)), worth.mean((0, 2))])  # (2, B, S)
            highest, worth = view.statistics[TOGETHER].to(places.device)[:, :, None].expand(-1, -1, places.shape[1], -1)
        else:
            highest = worth = (places if self.rule == "any" else slots.score.nan_to_num(nan=0.0)).float()
            if self.heads == "union":
                highest = worth.amax(1, keepdim=True).expand_as(worth)
                worth = worth.mean(1, keepdim=True).expand_as(worth)
        worth = worth.masked_fill(~here, 0.0)
        highest = highest.masked_fill(~here, -torch.inf)
        order = slots.in_text()
        page = _segments(slots, order, self.length)

        def over_page(value: Tensor, how: str, start: float) -> Tensor:
            there = value.gather(2, order)
            whole = torch.full_like(there, start).scatter_reduce(2, page, there, how).gather(2, page)
            return torch.empty_like(whole).scatter(2, order, whole)

        mean = over_page(worth, "sum", 0.0) / over_page(here.float(), "sum", 0.0).clamp_min(1)
        best = mean if self.rule == "mean" else over_page(highest, "amax", -torch.inf)
        first = over_page(protected.float(), "amax", 0.0) > 0
        best, mean = (value.masked_fill(first, torch.inf).masked_fill(~here, -torch.inf) for value in (best, mean))
        return best, mean


@dataclass(frozen=True)
class SameLayers(parts.Wrapper):
    """Base class of allocators that change the head budgets of `inner`."""

    inner: parts.Allocator

    def layer_budgets(self, average: int, tokens: int, num_layers: int) -> list[int]:
        return self.inner.layer_budgets(average, tokens, num_layers)

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        return self.inner.statistic(slots, layer_pass)


@dataclass(frozen=True)
class EqualHeadsOf(SameLayers):
    """An allocator's budgets with equal heads: each gets the mean of its layer, rounded down."""

    def head_budgets(self, view: View) -> Tensor | None:
        """The mean (B, H) over heads of the inner budgets."""
        inner_budgets = self.inner.head_budgets(view)
        if inner_budgets is None:
            return None
        mean = inner_budgets.long().sum(-1, keepdim=True).div(inner_budgets.shape[-1], rounding_mode="floor")
        return mean.clamp_min(1).expand_as(inner_budgets).contiguous()


@dataclass(frozen=True)
class EqualEverywhere(Uniform):
    """Equal budgets for the heads of all layers, which choose pages together, so none may decide before the last."""

    across_layers: ClassVar[bool] = True

    def statistic(self, slots: Slots, layer_pass: AttentionPass) -> Tensor | None:
        """Scores (B, H, S)."""
        return slots.score


def in_whole_pages(
    pipeline: Pipeline, length: int, rule: parts.PageRule = "any", heads: parts.PageHeads = "union"
) -> Pipeline:
    """The pipeline with whole pages of `length` tokens kept or evicted; unchanged for a length of 1.

    With `heads` "union", pages hold all heads of a layer: heads share the layer's budget equally. With "model" pages
    hold all heads of all layers, as most engines' do, and all share the budget. Raises UserError if the settler itself
    chooses what leaves, or with "model" if layers cannot decide together.
    """
    if length == 1:
        return pipeline
    if not pipeline.can.settle.by_selector:
        raise UserError(
            "page needs a method that, after the prompt, evicts or merges exactly what its scores put last; this one "
            "acts before, or makes slots of its own: leave page at 1."
        )
    if heads == "model" and (pipeline.decode or pipeline.block):
        raise UserError(
            "page_heads 'model' needs a method that decides once, after the prompt, as layers decide one after another "
            "while decoding: use page_heads 'union'."
        )
    allocate = pipeline.allocate
    if heads != "each":
        allocate = EqualHeadsOf(allocate) if heads == "union" else EqualEverywhere()
    return replace(pipeline, allocate=allocate, select=WholePages(pipeline.select, length, rule, heads))


def _segments(slots: Slots, order: Tensor, length: int) -> Tensor:
    """Number (B, H, S) of each slot's page along `order`, which keeps the slots of a page together."""
    position = slots.position.gather(2, order).long()
    which = torch.where(slots.valid.gather(2, order), position.div(length, rounding_mode="floor"), -1)
    new = torch.zeros_like(which)
    new[..., 1:] = which[..., 1:] != which[..., :-1]
    return new.cumsum(-1)
