"""Positions inside the cache: what a layer gives is attention over un-rotated keys turned to their ranks in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvlab.checking.case import walk
from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.core.methods import Method, make_method
from kvlab.core.methods.composition.composed import compose
from kvlab.core.methods.wrappers.choice import keeping
from kvlab.models.load import prepare
from tests.cache.layers import DIM, draw
from tests.families import tiny_model
from tests.methods.merging import ROTARY, Layer, prompt

TOKENS, BUDGET, SINKS = 20, 9, 3


def rotated(states: Tensor, first: int) -> Tensor:
    """`states` (B, H, n, d) at positions first, first + 1, ..."""
    place = torch.arange(first, first + states.shape[2]).expand(states.shape[:3])
    return ROTARY.turn(states, place).to(states.dtype)


class Reference:
    """Un-rotated keys of the whole text; a pass attends to what is kept, everything at its rank."""

    def __init__(self, budget: int, sinks: int, told: int | None = None) -> None:
        self.budget, self.sinks, self.told = budget, sinks, told
        self.key, self.value = torch.zeros(1, 2, 0, DIM), torch.zeros(1, 2, 0, DIM)
        self.kept: list[int] = []

    def feed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        new = key.shape[2]
        self.kept += range(self.key.shape[2], self.key.shape[2] + new)
        self.key, self.value = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
        held = rotated(self.key[:, :, self.kept], 0)
        query = rotated(query, len(self.kept) - new)
        logits = query @ held.repeat_interleave(query.shape[1] // 2, 1).transpose(-1, -2) * DIM**-0.5
        logits = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(len(self.kept) - new + 1).bool(), -torch.inf)
        values = self.value[:, :, self.kept].repeat_interleave(query.shape[1] // 2, 1)
        if len(self.kept) > self.budget:
            first = self.kept[: self.sinks] + [p for p in self.kept[self.sinks :] if p == self.told]
            rest = [p for p in self.kept if p not in first]
            self.kept = sorted(first + rest[len(first) - self.budget :])
        return torch.softmax(logits, -1) @ values


def turns() -> list[int]:
    """Tokens of each pass: a prompt, decoding, a second turn, decoding."""
    return [TOKENS, 1, 1, 1, 1, 7, 1, 1, 1]


def differences(method: Method, budget: int = BUDGET, sinks: int = SINKS) -> list[float]:
    layer, reference = Layer(method, budget, ROTARY), Reference(budget, sinks)
    seen, found = 0, []
    for step, count in enumerate(turns()):
        query, key, value = prompt(10 * step, count, 2, 2)
        given = layer.feed(rotated(query, seen), rotated(key, seen), value)
        found.append(float((given - reference.feed(query, key, value)).abs().max()))
        seen += count
    return found


@pytest.mark.parametrize(("budget", "sinks"), [(9, 3), (9, 0), (4, 3), (2, 1), (25, 3)])
def test_equals_unrotated_keys_turned_to_their_ranks(budget: int, sinks: int) -> None:
    """Through prefill, decoding, a second turn and decoding again; budgets that bind at once, later, and tightly."""
    assert max(differences(make_method("streaming-llm", sinks=sinks, positions="cache"), budget, sinks)) < 1e-5


def test_tokens_that_were_told_to_stay_stand_before_the_window() -> None:
    """One of the prompt, and one that leaves the window only while decoding."""
    for told in (6, TOKENS + 1):
        layer = Layer(make_method("streaming-llm", sinks=SINKS, positions="cache"), BUDGET, ROTARY)
        layer.layer.settings.pipeline = keeping(layer.layer.settings.pipeline, (told,))
        reference, seen = Reference(BUDGET, SINKS, told), 0
        for step, count in enumerate(turns()):
            query, key, value = prompt(10 * step, count, 2, 2)
            given = layer.feed(rotated(query, seen), rotated(key, seen), value)
            torch.testing.assert_close(given, reference.feed(query, key, value), rtol=1e-4, atol=1e-5)
            seen += count
        assert told in layer.table()


def test_original_positions_are_another_thing() -> None:
    """The equality above can fail: with original positions only passes before the first eviction agree."""
    found = differences(make_method("streaming-llm", sinks=SINKS))
    assert found[0] < 1e-5
    assert min(found[1:]) > 1e-2


def test_a_window_needs_no_turning() -> None:
    assert max(differences(make_method("window"), sinks=0)) < 1e-5


def test_half_precision_does_not_drift() -> None:
    """After 300 turns a sink's key is its first key turned once, not three hundred times."""
    layer = Layer(make_method("streaming-llm", positions="cache", sinks=1), 4, ROTARY)
    query, key, value = (states.bfloat16() for states in prompt(0, 6, 2, 2))
    layer.feed(query, key, value)
    for step in range(300):
        layer.feed(*(states.bfloat16() for states in prompt(step, 1, 2, 2)))
    sink = layer.table()[0]["key"]
    once = ROTARY.turn(key[0, 0, :1], torch.tensor([306 - 4]))[0].bfloat16()
    assert torch.equal(sink, once)


def test_the_sinks_own_keys_are_counted_and_follow_their_rows() -> None:
    layer = Layer(make_method("streaming-llm", positions="cache", sinks=SINKS), BUDGET, ROTARY)
    layer.feed(*prompt(0, TOKENS, 2, 2, batch=2))
    table = layer.layer.tables[0]
    assert table is not None
    keys, turn = table.head_state["sink_keys"], table.head_state["sink_turn"]
    assert table.head_bytes() == keys.numel() * 4 + 2 * turn.numel() * 4
    assert (turn == TOKENS - BUDGET).all()
    layer.layer.reorder_cache(torch.tensor([1, 1]))
    torch.testing.assert_close(table.head_state["sink_keys"][0], keys[1])


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gpt-neox", "falcon-grouped", "gemma3"])
def test_in_a_model_a_padded_row_equals_the_row_alone(family: str) -> None:
    model = prepare(tiny_model(family))
    ids = torch.randint(3, 97, (2, 24), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, :7] = 0

    def steps(ids: Tensor, mask: Tensor) -> Tensor:
        return walk(model, make_cache(model, "streaming-llm", 9, positions="cache"), ids, mask, steps=6)

    together = steps(ids, mask)
    torch.testing.assert_close(together[:1], steps(ids[:1], mask[:1]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together[1:], steps(ids[1:, 7:], mask[1:, 7:]), rtol=1e-4, atol=1e-4)


def test_without_rotary_positions_it_says_so() -> None:
    layer = Layer(make_method("streaming-llm", positions="cache"), BUDGET)
    with pytest.raises(UserError, match="no rotary positions"):
        layer.feed(*prompt(0, TOKENS, 2))


def test_other_scores_leave_gaps_and_are_refused() -> None:
    with pytest.raises(UserError, match="window without gaps"):
        compose(score="h2o", settle="streaming-llm", positions="cache")
    layer = Layer(compose(score="recency", settle="streaming-llm", positions="cache", sinks=2, recent=1), 6, ROTARY)
    layer.feed(draw(1, 1, 2, 12, DIM), draw(2, 1, 2, 12, DIM), draw(3, 1, 2, 12, DIM))
    assert sorted(layer.table()) == [0, 1, 8, 9, 10, 11]
