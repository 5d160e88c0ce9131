"""AsymKV and KVSlimmer: which neighbours merge, and into what, slot by slot; and what such a merge promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.core.methods import make_method
from tests.cache.layers import DIM, draw
from tests.methods.merging import ROTARY, Layer
from tests.methods.test_selection import TOKENS, mass_of, prompt

WINDOW, SINKS = 4, 2


def runs_of(score: list[list[float]], wanted: int, width: int, late: float, shared: bool, head: int) -> list[list[int]]:
    """The runs of tokens that one head ends with: the cheapest pairs join, at most a quarter of those left a round."""
    merging = range(SINKS, TOKENS - WINDOW)
    heads = range(2) if shared else [head]
    runs = [[t] for t in range(width)]
    rounds = max(1, math.ceil(math.log(width / max(width - wanted, 1)) / math.log(4 / 3)))
    for number in range(rounds):
        attention = [sum(score[h][t] for h in heads for t in run) for run in runs]
        tokens = [len(run) * len(heads) for run in runs]
        pairs = [i for i in range(len(runs) - 1) if runs[i][-1] in merging and runs[i + 1][0] in merging]
        cost = {i: (attention[i] + attention[i + 1]) * (tokens[i] + tokens[i + 1]) / math.exp(late * i) for i in pairs}
        missing = wanted - (width - len(runs))
        if number < rounds - 1:
            missing = min(missing, math.ceil(len(pairs) / 4))
        joined = set(sorted(pairs, key=lambda i: cost[i])[:missing])
        made: list[list[int]] = []
        for i, run in enumerate(runs):
            if i - 1 in joined:
                made[-1] = made[-1] + run
            else:
                made.append(run)
        runs = made
    return runs


def unrotated(key: Tensor, position: int) -> Tensor:
    half, out = DIM // 2, key.clone().double()
    for i in range(half):
        angle = -position * float(ROTARY.inverse_frequencies[i])
        a, b = float(key[i]), float(key[i + half])
        out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return out


def attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[dict, dict]:
    """({query: attention to all tokens}, {query: output}) of one KV head's last queries, query heads side by side."""
    mass, output = {}, {}
    for g in range(2):
        for t in range(TOKENS - WINDOW, TOKENS):
            logit = [float(query[g, t] @ key[j]) / math.sqrt(DIM) if j <= t else -math.inf for j in range(TOKENS)]
            total = sum(math.exp(each) for each in logit)
            mass[g, t] = [math.exp(each) / total for each in logit]
            output[g, t] = sum(m * value[j].double() for j, m in enumerate(mass[g, t]))
    return mass, output


def key_weight(kind: str, token: int, run: list[int], query: Tensor, mass: dict, output: dict, value: Tensor) -> Tensor:
    """The weight of one token's key in its run, channel by channel."""
    if kind == "equal":
        return torch.ones(DIM, dtype=torch.float64)
    total = torch.zeros(DIM, dtype=torch.float64)
    order, v = (1 if kind == "hessian-code" else 2), value.double()
    for at, a in mass.items():
        apart = {t: float((v[t] - output[at]).norm(p=order)) for t in run}
        if kind == "gradient":
            pairs = query[at].double().square().view(2, -1).mean(0).repeat(2)  # both channels that turn together
            total += (a[token] * apart[token]) ** 2 * pairs
            continue
        total += a[token] * (1 - 2 * a[token]) * apart[token]
        for other in (token - 1, token + 1):
            if other in run:
                both = float((v[token] + v[other] - 2 * output[at]).norm())
                both = apart[token] + apart[other] if kind == "hessian-code" else both
                total -= a[token] * a[other] * both
    return total


CASES = [
    ("asymkv", "gradient", {}), ("asymkv", "equal", {"keys": "equal"}), ("kvslimmer", "hessian", {}),
    ("kvslimmer", "hessian-code", {"variant": "code"}), ("asymkv", "gradient", {"heads": "each", "late": True}),
    ("asymkv", "gradient", {"clip": 3}), ("asymkv", "gradient", {"clip": 3, "add_values": True}),
    ("asymkv", "gradient", {"space": "rotated"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "kind", "options"), CASES, ids=str)
@pytest.mark.parametrize("budget", [30, 16])
def test_neighbours_merge_slot_by_slot(method: str, kind: str, options: dict, budget: int) -> None:
    layer = Layer(make_method(method, window=WINDOW, sinks=SINKS, **options), budget, ROTARY)
    query, key, value = prompt()
    layer.feed(query, key, value)
    seen = mass_of(query, key)[:, -WINDOW:].sum(1)
    seen[:, TOKENS - WINDOW :] = 0
    late, clip = math.log(512) / 4096 if options.get("late") else 0.0, options.get("clip", 0)
    for head in range(2):
        shared = options.get("heads", "shared") == "shared"
        runs = runs_of(seen.tolist(), TOKENS - budget, TOKENS, late, shared, head)
        table = layer.table(head)
        assert sorted(table) == [run[-1] for run in runs]
        own_query, own_value = query[0, 2 * head : 2 * head + 2], value[0, head]
        mass, output = attended(own_query, key[0, head], own_value)
        for run in runs:
            slot, counts = table[run[-1]], min(len(run), clip) if clip else len(run)
            assert int(slot["votes"]) == len(run)
            assert float(slot["log_mass"]) == pytest.approx(math.log(counts), abs=1e-6)
            held = counts if options.get("add_values") else len(run)
            torch.testing.assert_close(slot["value"], sum(own_value[t] for t in run) / held, atol=1e-5, rtol=1e-4)
            weights = {t: key_weight(kind, t, run, own_query, mass, output, own_value) for t in run}
            if any(bool((w <= 0).any()) for w in weights.values()):
                weights = {t: torch.ones(DIM, dtype=torch.float64) for t in run}
            turned = {t: key[0, head, t].double() for t in run}
            if options.get("space") != "rotated":  # averaged as before rotation, then turned to the last one's place
                turned = {t: unrotated(unrotated(key[0, head, t], t), -run[-1]) for t in run}
            expected = sum(weights[t] * turned[t] for t in run) / sum(weights.values())
            torch.testing.assert_close(slot["key"].double(), expected, atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("method", ["asymkv", "kvslimmer"])
def test_identical_neighbours_merge_without_any_change(method: str) -> None:
    """Equal keys and values in a run: every query gets what it got, for the slot counts for all of them."""
    query, key, value = prompt()
    key, value = (each[:, :, :1].expand_as(each).clone() for each in (key, value))
    layer = Layer(make_method(method, window=WINDOW, sinks=SINKS, space="rotated"), 12)
    layer.feed(query, key, value)
    assert float(layer.slots.most_votes().max()) > 3
    torch.testing.assert_close(layer.ask(draw(5, 1, 4, 1, DIM)).float(), value[:, :, :1].repeat_interleave(2, 1))


@pytest.mark.parametrize("method", ["asymkv", "kvslimmer"])
@pytest.mark.parametrize("budget", [1, 3, SINKS + WINDOW, SINKS + WINDOW + 1])
def test_a_budget_without_room_for_merges_evicts(method: str, budget: int) -> None:
    layer, (query, key, value) = Layer(make_method(method, window=WINDOW, sinks=SINKS), budget), prompt()
    layer.feed(query, key, value)
    assert (layer.slots.live() == budget).all()
    layer.check_votes(TOKENS)
    if budget == SINKS + WINDOW + 1:
        assert float(layer.slots.most_votes().max()) == TOKENS - SINKS - WINDOW
    else:
        assert float(layer.slots.most_votes().max()) == 1
