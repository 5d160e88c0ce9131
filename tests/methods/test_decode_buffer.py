"""Compressing on while decoding: every so many tokens, by the newest queries, with these tokens on top."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.cache import make_cache
from kvlab.core.contract.numerics import uniform_draws
from kvlab.core.methods import make_method
from kvlab.models.load import prepare
from tests.cache.layers import DIM, draw
from tests.conformance.test_matrix import batch, near
from tests.families import tiny_model
from tests.methods.merging import ROTARY, Layer
from tests.methods.test_selection import BUDGET, TOKENS, prompt

WINDOW, BUFFER = 3, 4
GOING_ON = (
    "snapkv", "pyramidkv", "adakv", "lagkv", "expected-attention", "criticalkv", "rkv", "chunkkv", "grkv", "asymkv",
    "kvslimmer", "exactmerge2", "vase",
)  # fmt: skip


def pooled(score: dict[int, float], kernel: int) -> dict[int, float]:
    """Maximum over neighbours among the tokens given, in the order of the text."""
    tokens, half = sorted(score), kernel // 2
    return {t: max(score[o] for o in tokens[max(i - half, 0) : i + half + 1]) for i, t in enumerate(tokens)}


def window_scores(queries: Tensor, keys: dict[int, Tensor], asked: list[int]) -> dict[int, float]:
    """Attention of one KV head's queries (G, n, d), asked at `asked`, summed over rows, mean over the group."""
    score = dict.fromkeys(keys, 0.0)
    for group in queries:
        for row, position in zip(group, asked, strict=True):
            logit = {t: float(row @ key) / math.sqrt(DIM) for t, key in keys.items() if t <= position}
            total = sum(math.exp(each) for each in logit.values())
            for token, each in logit.items():
                score[token] += math.exp(each) / total / len(queries)
    return score


def walk(method: str, steps: int, score_of, protected: int, **options: object) -> None:
    """Feeds tokens; before each decision works out by `score_of(query (G, T, d), keys, seen)` which slots stay."""
    layer = Layer(make_method(method, buffer=BUFFER, **options), BUDGET, ROTARY)
    query, key, value = prompt()
    layer.feed(query, key, value)
    alive = [sorted(layer.table(head)) for head in range(2)]
    for step in range(steps):
        new = [draw(90 + 3 * step + n, 1, heads, 1, DIM) for n, heads in enumerate((4, 2, 2))]
        query, key = torch.cat([query, new[0]], 2), torch.cat([key, new[1]], 2)
        layer.feed(*new)
        seen = TOKENS + step + 1
        for head in range(2):
            alive[head] = [*alive[head], seen - 1]
            if (step + 1) % BUFFER == 0:
                score = score_of(query[0, 2 * head : 2 * head + 2], {t: key[0, head, t] for t in alive[head]}, seen)
                old = sorted((t for t in alive[head] if t < seen - protected), key=lambda t: (-score[t], -t))
                alive[head] = sorted(old[: BUDGET - protected]) + list(range(seen - protected, seen))
            assert sorted(layer.table(head)) == alive[head], (step, head)
            assert len(alive[head]) <= BUDGET + BUFFER


@pytest.mark.parametrize("pooling", ["max", "average"])
def test_snapkv_while_decoding_slot_by_slot(pooling: str) -> None:
    def score_of(query: Tensor, keys: dict[int, Tensor], seen: int) -> dict[int, float]:
        asked = list(range(seen - WINDOW, seen))
        mass = window_scores(query[:, -WINDOW:], keys, asked)
        older = {t: m for t, m in mass.items() if t < seen - WINDOW}
        tokens = sorted(older)
        around = {t: [older[o] for o in tokens[max(i - 1, 0) : i + 2]] for i, t in enumerate(tokens)}
        return {t: max(near) if pooling == "max" else sum(near) / len(near) for t, near in around.items()}

    walk("snapkv", 3 * BUFFER, score_of, WINDOW, window=WINDOW, kernel=3, pooling=pooling, decode="budget")


@pytest.mark.parametrize("over", ["sum", "max"])
def test_morphkv_slot_by_slot(over: str) -> None:
    """The group's summed logits, a softmax over older slots for each recent query, and their sum or maximum."""

    def score_of(query: Tensor, keys: dict[int, Tensor], seen: int) -> dict[int, float]:
        older = [t for t in keys if t < seen - WINDOW]
        shares: dict[int, list[float]] = {t: [] for t in older}
        for row in range(1, WINDOW + 1):
            logit = {t: sum(float(head[-row] @ keys[t]) for head in query) / math.sqrt(DIM) for t in older}
            total = sum(math.exp(each) for each in logit.values())
            for token, each in logit.items():
                shares[token].append(math.exp(each) / total)
        return {t: sum(each) if over == "sum" else max(each) for t, each in shares.items()}

    walk("morphkv", 3 * BUFFER, score_of, WINDOW, window=WINDOW, over=over)
    layer, (query, key, value) = Layer(make_method("morphkv", window=WINDOW, over=over), BUDGET, ROTARY), prompt()
    layer.feed(query, key, value)
    for head in range(2):
        score = score_of(query[0, 2 * head : 2 * head + 2], {t: key[0, head, t] for t in range(TOKENS)}, TOKENS)
        best = sorted(score, key=lambda t: -score[t])[: BUDGET - WINDOW]
        assert sorted(layer.table(head)) == sorted([*best, *range(TOKENS - WINDOW, TOKENS)])


def redundancy(keys: dict[int, Tensor], threshold: float, excused: int) -> dict[int, float]:
    """Row by row: cosines with all others, the last similar ones set to 0; column means; softmax over all slots."""
    tokens = sorted(keys)
    column = dict.fromkeys(tokens, 0.0)
    for one in tokens:
        row = {o: float(torch.cosine_similarity(keys[one], keys[o], dim=0)) for o in tokens if o != one}
        for alike in [o for o in tokens if o != one and row[o] > threshold][-excused:] if excused else []:
            row[alike] = 0.0
        for other, cosine in row.items():
            column[other] += cosine / len(tokens)
    total = sum(math.exp(each) for each in column.values())
    return {t: math.exp(each) / total for t, each in column.items()}


@pytest.mark.parametrize("balance", [0.1, 0.0, 1.0])
@pytest.mark.parametrize("excused", [0, 1, 2])
def test_rkv_slot_by_slot(balance: float, excused: int) -> None:
    def score_of(query: Tensor, keys: dict[int, Tensor], seen: int) -> dict[int, float]:
        importance = dict.fromkeys((t for t in keys if t < seen - WINDOW), 0.0)
        for row in range(1, WINDOW + 1):
            logit = {t: max(float(head[-row] @ keys[t]) for head in query) / math.sqrt(DIM) for t in importance}
            total = sum(math.exp(each) for each in logit.values())
            for token, each in logit.items():
                importance[token] += math.exp(each) / total / WINDOW
        again, flat = redundancy(keys, 0.2, excused), pooled(importance, 3)
        return {t: balance * flat[t] - (1 - balance) * again[t] for t in importance}

    options = {"window": WINDOW, "kernel": 3, "balance": balance, "threshold": 0.2, "excused": excused}
    walk("rkv", 3 * BUFFER, score_of, WINDOW, **options)
    # The prompt is compressed by the same rule.
    layer, (query, key, value) = Layer(make_method("rkv", **options), BUDGET, ROTARY), prompt()
    layer.feed(query, key, value)
    for head in range(2):
        score = score_of(query[0, 2 * head : 2 * head + 2], {t: key[0, head, t] for t in range(TOKENS)}, TOKENS)
        best = sorted(score, key=lambda t: (-score[t], -t))[: BUDGET - WINDOW]
        assert sorted(layer.table(head)) == sorted([*best, *range(TOKENS - WINDOW, TOKENS)])


@pytest.mark.parametrize(("shield", "sinks"), [(0.25, 1), (0.5, 0), (0.0, 2), (1.0, 1)])
def test_vase_slot_by_slot(shield: float, sinks: int) -> None:
    """Shares of attention among older slots, pooled with zeros; ranges of values; draws anew for each length."""
    options = {"window": WINDOW, "kernel": 3, "shield": shield, "sinks": sinks, "buffer": BUFFER}
    layer, (query, key, value) = Layer(make_method("vase", **options), BUDGET, ROTARY), prompt()
    layer.feed(query, key, value)
    alive = [list(range(TOKENS))] * 2
    for seen in range(TOKENS, TOKENS + 3 * BUFFER + 1):
        if seen > TOKENS:
            new = [draw(90 + 3 * seen + n, 1, heads, 1, DIM) for n, heads in enumerate((4, 2, 2))]
            query, key, value = (torch.cat(pair, 2) for pair in zip((query, key, value), new, strict=True))
            layer.feed(*new)
            alive = [[*own, seen - 1] for own in alive]
        for head in range(2):
            if (seen - TOKENS) % BUFFER == 0:
                group = query[0, 2 * head : 2 * head + 2, seen - WINDOW :]
                alive[head] = vase_keeps(group, key[0, head], value[0, head], alive[head], head, shield, sinks)
            assert sorted(layer.table(head)) == alive[head], (seen, head)


def vase_keeps(
    group: Tensor, key: Tensor, value: Tensor, alive: list[int], head: int, shield: float, sinks: int
) -> list[int]:
    """What stays of `alive` by VaSE's rule: query heads (G, window, d) and all keys and values (T, d) of a KV head."""
    seen = len(key)
    older = [t for t in alive if t < seen - WINDOW]
    score = dict.fromkeys(older, 0.0)
    for row in group.flatten(0, 1):
        logit = {t: float(row @ key[t]) / math.sqrt(DIM) for t in older}
        total = sum(math.exp(each) for each in logit.values())
        for token, each in logit.items():
            score[token] += math.exp(each) / total
    around = {t: sum(score[o] for o in older[max(i - 1, 0) : i + 2]) / 3 for i, t in enumerate(older)}
    span = {t: float(value[t].max() - value[t].min()) for t in older}
    first = [t for t in older if t < sinks]
    room = BUDGET - WINDOW - len(first)
    large = sorted((t for t in older if t >= sinks), key=lambda t: -span[t])
    large = large[: max(min(int(BUDGET * shield) - len(first), room), 0)]
    own = uniform_draws(0, torch.tensor(older).expand(1, 2, -1) + (seen << 32))[0, head]  # layer 0 of seed 0
    luck = {t: math.log(around[t]) - math.log(-math.log(float(u) + 2**-26)) for t, u in zip(older, own, strict=True)}
    others = sorted((t for t in older if t not in {*first, *large}), key=lambda t: -luck[t])[: room - len(large)]
    return sorted([*first, *large, *others, *range(seen - WINDOW, seen)])


def test_vase_draws_a_slot_as_often_as_its_share_of_attention() -> None:
    """One draw in each of many heads with the same states: four standard deviations."""
    heads, tokens = 4000, 9
    layer = Layer(make_method("vase", window=1, kernel=1, shield=0.5, sinks=0), 3, ROTARY)
    query, key, value = (draw(n, 1, 1, tokens, DIM) for n in (1, 2, 3))
    layer.feed(*(part.expand(1, heads, -1, -1) for part in (query, key, value)))
    kept = layer.slots.position[layer.slots.valid].view(heads, 3)
    span = value[0, 0, :-1].amax(-1) - value[0, 0, :-1].amin(-1)
    shielded = int(span.argmax())
    logit = (key[0, 0, :-1] @ query[0, 0, -1]) / math.sqrt(DIM)
    logit[shielded] = -math.inf
    expected = torch.softmax(logit, 0)
    often = torch.bincount(kept.flatten().long(), minlength=tokens)[:-1] / heads
    assert often[shielded] == 1.0
    often[shielded] = 0.0
    assert ((often - expected).abs() <= 4 * (expected * (1 - expected) / heads).sqrt()).all()


SMALL = {"snapkv": {"window": 3, "kernel": 3}, "pyramidkv": {"window": 2, "kernel": 3}, "adakv": {"window": 2},
         "lagkv": {"lag": 3, "sinks": 1}, "expected-attention": {"sinks": 1}, "criticalkv": {"window": 3},
         "rkv": {"window": 2}, "chunkkv": {"window": 2, "length": 4}, "grkv": {"window": 3, "rows": 6},
         "asymkv": {"window": 2, "sinks": 1}, "kvslimmer": {"window": 2, "sinks": 1},
         "exactmerge2": {"window": 3, "sinks": 1, "recent": 2}, "vase": {"window": 2, "sinks": 1}}  # fmt: skip


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("method", GOING_ON)
def test_a_head_never_holds_more_than_budget_and_buffer(method: str, every: int) -> None:
    """Step by step over twenty tokens, and after each decision exactly the budget, padded rows included."""
    model = prepare(tiny_model("llama"))
    ids, mask = batch()
    cache = make_cache(model, method, 9, compress_every=every, decode="budget", buffer=5, **SMALL[method])
    fullest = 0
    with torch.inference_mode():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0), past_key_values=cache)
        for step in range(20):
            mask = torch.cat([mask, mask.new_ones(2, 1)], 1)
            where = mask.sum(-1, keepdim=True) - 1
            model(torch.full((2, 1), 5 + step), attention_mask=mask, position_ids=where, past_key_values=cache)
            on_top = (step + 1) % (5 + every - 1)
            for layer in cache.compressed_layers():
                live = layer.slots.live()
                assert (live == layer.budget + on_top).all(), step
                assert float(live.float().mean()) <= 9 + 14 * (method == "pyramidkv") + 5
            fullest = max(fullest, int(cache.compressed_layers()[1].slots.live().max()))
    assert fullest > 9


@pytest.mark.parametrize("method", GOING_ON)
def test_padding_and_second_turns_do_not_matter(method: str) -> None:
    """A padded row goes on as it would alone: queries kept for later are those of real tokens."""
    model = prepare(tiny_model("qwen3"))
    ids, mask = batch()

    def on(ids: Tensor, mask: Tensor) -> Tensor:
        cache = make_cache(model, method, 9, decode="budget", buffer=2, **SMALL[method])
        rows = []
        with torch.inference_mode():
            for new in (ids, *torch.arange(40, 49).expand(len(ids), -1).split([1, 1, 4, 1, 1, 1], 1)):
                if new is not ids:
                    mask = torch.cat([mask, mask.new_ones(new.shape)], 1)
                position = (mask.cumsum(-1) - 1)[:, -new.shape[1] :].clamp_min(0)
                rows.append(model(new, attention_mask=mask, position_ids=position, past_key_values=cache).logits[:, -1])
        return torch.stack(rows, 1)

    together = on(ids, mask)
    assert near(on(ids[1:, 7:], mask[1:, 7:]), together[1:])


def test_kept_queries_count_as_bytes() -> None:
    model = prepare(tiny_model("llama"))
    ids, _ = batch(1)
    held = {}
    for decode in ("keep", "budget"):
        cache = make_cache(model, "snapkv", 9, window=3, kernel=3, decode=decode, buffer=2)
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        held[decode] = cache.memory().live_bytes
    # 3 layers, 4 query heads, 3 queries of 16 numbers of 4 bytes
    assert held["budget"] - held["keep"] == 3 * 4 * 3 * 16 * 4
