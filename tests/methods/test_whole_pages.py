"""Whole pages: what stays is a union of pages, within the budget, in the order that a plain loop finds."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kvlab.checking.case import STEPS, Case, walk
from kvlab.core.cache.layers.compressed_layer import CompressedLayer
from kvlab.core.contract.parts import PAGE_HEADS, PAGE_RULES
from kvlab.core.contract.pipeline import LowestScore
from kvlab.core.contract.view import Slots, View
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.core.methods.wrappers.choice import keeping
from kvlab.core.methods.wrappers.page_selector import WholePages
from kvlab.core.stores import STORES
from tests.conformance.variants import SHORT

TOKENS, HEADS, SINKS, RECENT = 43, 2, 3, 5
INNER = LowestScore(sinks=SINKS, recent=RECENT)
REFUSED = {"full", "packed", "zsmerge", "kvmerger", "pyramid-pool", "cam", "asymkv", "kvslimmer", "semanticache",
           "exactmerge"}  # fmt: skip


def separate() -> set[str]:
    """Methods whose layers cannot decide together, as they decide while decoding, or have no budget to share."""
    made = {name: make_method(name) for name in registered().keys() - REFUSED}
    pipelines = {name: method.pipeline() for name, method in made.items()}
    return {name for name, own in pipelines.items() if own.decode or own.block or not made[name].needs_budget}


def view(budget: int, seed: int = 0) -> View:
    draw = torch.Generator().manual_seed(seed)
    shape, score = (1, HEADS, TOKENS), torch.rand(1, HEADS, TOKENS, generator=draw)
    position = torch.arange(TOKENS, dtype=torch.int32).expand(shape).contiguous()
    one, state = torch.ones(shape), torch.zeros(*shape, 4)
    other = torch.rand(shape, generator=draw)  # scores of a second layer
    slots = Slots(state, state, position, one, one - 1, score, one.bool())
    budgets = torch.full((1, HEADS), budget)
    return View(slots, None, budgets, torch.tensor([TOKENS]), "prefill", TOKENS - budget, budget, False, 0, 2,
                statistics={0: score, 1: other})  # fmt: skip


def kept(select: WholePages | LowestScore, seen: View) -> list[list[int]]:
    victims = select.victims(seen, seen.excess(), seen.most_excess)
    return [row.nonzero()[:, 0].tolist() for row in victims.keep(seen.slots.valid)[0]]


def expected(budget: int, length: int, rule: str, heads: str) -> list[list[int]]:
    """Pages from the best on, in plain loops."""
    score = [*view(budget).statistics[0][0].tolist(), *view(budget).statistics[1][0].tolist()]
    safe = [t for t in range(TOKENS) if t < SINKS or t >= TOKENS - RECENT]
    free = [t for t in range(TOKENS) if t not in safe]
    places = [{t: place for place, t in enumerate(sorted(free, key=own.__getitem__))} for own in score]
    pages = [range(first, min(first + length, TOKENS)) for first in range(0, TOKENS, length)]
    found = []
    for head in range(HEADS):
        judges = {"union": range(HEADS), "model": range(2 * HEADS), "each": [head]}[heads]

        def worth(page: range, judges: range | list[int] = judges) -> tuple[float, float, int]:
            values = [[places[h][t] if rule == "any" else score[h][t] for t in page] for h in judges]
            mean = sum(map(sum, values)) / len(page)
            highest = mean if rule == "mean" else max(map(max, values))
            return highest, mean, page[0]

        first = [page for page in reversed(pages) if any(t in safe for t in page)]
        others = sorted((page for page in pages if page not in first), key=worth, reverse=True)
        stays = set(safe)
        for page in [*first, *others]:
            if len(stays | {*page}) > budget:
                break
            stays |= {*page}
        found.append(sorted(stays))
    return found


@pytest.mark.parametrize(("rule", "heads"), product(PAGE_RULES, PAGE_HEADS))
def test_pages_stay_in_the_order_of_their_rule(rule: str, heads: str) -> None:
    for length, budget in ((4, 22), (8, 22), (16, 38), (5, 9), (16, 20), (3, 42), (64, 30)):
        own = kept(WholePages(INNER, length, rule, heads), view(budget))
        assert own == expected(budget, length, rule, heads), (length, budget)
        assert all(len(row) <= budget for row in own)


@pytest.mark.parametrize("rule", PAGE_RULES)
def test_pages_of_one_token_are_the_method_itself(rule: str) -> None:
    for budget in (9, 17, 30):
        assert kept(WholePages(INNER, 1, rule, "each"), view(budget)) == kept(INNER, view(budget))


@pytest.mark.parametrize("heads", PAGE_HEADS)
def test_every_method_keeps_whole_pages_within_its_budget(heads: str) -> None:
    """After the prompt and while decoding; heads that share pages keep the same ones.

    The first page holds the sinks: with keepkv the window leaves no room for the rest of it.
    """
    case, length = Case(tokens=60, budget=0.5), 4
    for name in registered().keys() - REFUSED - (separate() if heads == "model" else set()):
        method = make_method(name, **{**SHORT.get(name, {}), "page": length, "page_heads": heads})
        cache, generated = case.cache(method), 0 if method.pipeline().decode else STEPS - 1
        walk(case.model(), cache, *case.prompt())
        first = tokens_of(cache.compressed_layers()[0])[0]
        for layer in cache.compressed_layers():
            assert layer.budget is not None
            rows = tokens_of(layer)
            assert heads == "each" or all(row == (first if heads == "model" else rows[0]) for row in rows), name
            for row, budget in zip(rows, layer.budget[0].tolist(), strict=True):
                assert len(row) <= budget + generated, name
                whole = {page: {*range(page * length, min(page * length + length, 65))} for page in range(17)}
                broken = {page for page, tokens in whole.items() if row & tokens and not tokens <= row}
                assert not broken or budget < length or (name == "keepkv" and broken == {0}), (name, broken)


@pytest.mark.parametrize("heads", PAGE_HEADS)
def test_pinned_tokens_stay_and_a_store_and_padding_change_no_page(heads: str) -> None:
    case, chosen = Case(tokens=60, budget=0.5), (9, 22, 23)
    method = make_method("snapkv", **{**SHORT["snapkv"], "page": 4, "page_heads": heads})
    pinned, plain, packed, padded = (case.cache(method) for _ in range(4))
    pinned.settings.pipeline = keeping(pinned.settings.pipeline, chosen)
    packed.settings.store = STORES["int8"]
    ids, mask = case.prompt()
    for cache in (pinned, plain, packed):
        walk(case.model(), cache, ids, mask, steps=1)
    rows = torch.cat([ids[:, :7], ids], 1), torch.cat([0 * mask[:, :7], mask], 1)
    walk(case.model(), padded, *rows, steps=1)
    for cache in (pinned, plain, packed, padded):
        for layer in cache.compressed_layers():
            assert layer.slots is not None and (layer.slots.live() <= 30).all()
    for own, other, third, fourth in zip(
        *(c.compressed_layers() for c in (pinned, plain, packed, padded)), strict=True
    ):
        assert all(set(chosen) <= tokens for tokens in tokens_of(own))
        assert tokens_of(other) == tokens_of(third) == tokens_of(fourth)


def tokens_of(layer: CompressedLayer) -> list[set[int]]:
    slots = layer.slots
    assert slots is not None
    return [{*position[valid].tolist()} for position, valid in zip(slots.position[0], slots.valid[0], strict=True)]


def test_what_cannot_be_paged_says_so() -> None:
    assert {"h2o", "gvote"} <= separate() and not separate() & {"snapkv", "kvzip"}
    for name in separate():
        with pytest.raises(UserError, match="use page_heads 'union'"):
            make_method(name, page=16, page_heads="model")
    for name in REFUSED:
        with pytest.raises(UserError, match="leave page at 1"):
            make_method(name, page=16)
    for wrong in ({"page_rule": "median"}, {"page_heads": "both"}, {"page": 0}):
        with pytest.raises(UserError, match="page"):
            make_method("snapkv", **wrong)


def test_pages_of_one_token_are_not_recorded() -> None:
    assert make_method("snapkv").model_dump() == make_method("snapkv", page_heads="each").model_dump()
    assert make_method("snapkv", page=16).model_dump()["page_heads"] == "union"
