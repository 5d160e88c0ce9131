"""Equal scores: the older token leaves first, wherever its slot is, and scores that must be equal are."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from kvlab.core.contract.view import Slots
from kvlab.core.methods.eviction.cur import SquaredLengths
from kvlab.core.methods.eviction.keydiff import UnusualKeys
from kvlab.core.methods.settlers.edges import nearest, nearest_slot
from kvlab.core.methods.settlers.observed_queries import nearest_pivot
from tests.cache.layers import DIM, HandLayer, draw

TOKENS, BUDGET = 40, 14
PROCESSORS = {"AVX2": "avx2", "AVX512": "avx512"}  # by torch's name of what this one has


def slots_of(keys: Tensor, values: Tensor, position: Tensor) -> Slots:
    ones = torch.ones_like(position, dtype=torch.bool)
    return Slots(keys, values, position, ones.short(), ones.float() * 0, ones.float() * 0, ones)


@pytest.mark.parametrize("count", [1, 5, 24])
def test_the_lowest_are_those_of_a_sort_by_score_and_position(count: int) -> None:
    generator = torch.Generator().manual_seed(3)
    levels = torch.tensor([-torch.inf, -2.5, -1e-30, -0.0, 0.0, 1e-30, 0.5, 3.0, torch.inf])
    order = levels[torch.randint(len(levels), (2, 3, 24), generator=generator)]
    position = torch.stack([torch.randperm(300, generator=generator)[:24] for _ in range(6)]).view(2, 3, 24).short()
    keys = torch.zeros(2, 3, 24, 1)
    found = slots_of(keys, keys, position).lowest(order, count)
    for row in range(2):
        for head in range(3):
            pairs = list(zip(order[row, head].tolist(), position[row, head].tolist(), range(24), strict=True))
            assert found[row, head].tolist() == [slot for _, _, slot in sorted(pairs)][:count]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("method", ["h2o", "tova", "scissorhands"])
def test_of_tokens_that_nobody_looks_at_the_oldest_leave(method: str, every: int) -> None:
    """All attention goes to the first token, so all others have a score of exactly 0; new tokens fill freed slots."""
    hand = HandLayer(method, BUDGET, compress_every=every)
    towards = torch.zeros(DIM)
    towards[0] = 100.0

    def passed(tokens: int, first: bool) -> tuple[Tensor, Tensor, Tensor]:
        key = torch.zeros(1, 2, tokens, DIM)
        key[:, :, 0, 0] = 100.0 if first else 0.0
        return towards.expand(1, 4, tokens, DIM), key, draw(tokens, 1, 2, tokens, DIM)

    hand.feed(*passed(TOKENS, True))
    for step in range(1, 13):
        hand.feed(*passed(1, False))
        slots = hand.layer.slots
        assert slots is not None
        for head in range(2):
            held = sorted(slots.position[0, head][slots.valid[0, head]].tolist())
            assert held == [0, *range(TOKENS + step - len(held) + 1, TOKENS + step)]


def test_repeated_tokens_have_equal_scores() -> None:
    """As another processor would round them; squared lengths by formula 1 / part each, the product over its sum."""
    noise = 1 + 2e-7 * torch.randn(1, 1, 32, 8, generator=torch.Generator().manual_seed(1))
    states, position = torch.full((1, 1, 32, 8), 0.3) * noise, torch.arange(32)[None, None].short()
    slots = slots_of(states, states, position)
    shares = SquaredLengths(part=16).update(slots, None, True)["score"]  # type: ignore[arg-type]  # reads no pass
    assert shares.unique().numel() == 1 and shares[0, 0, 0].item() == pytest.approx(1 / 32, rel=1e-3)


def test_keys_as_far_from_the_middle_are_equally_unusual() -> None:
    """One token's key, rotated by its place: token i of n is as far from the mean as token n - 1 - i."""
    angle = torch.arange(31) * 0.1
    keys = torch.stack([angle.cos(), angle.sin()], -1)[None, None]
    slots = slots_of(keys, keys, torch.arange(31)[None, None].short())
    score = UnusualKeys().update(slots, None, True)["score"][0, 0]  # type: ignore[arg-type]  # reads no pass
    assert torch.equal(score, score.flip(-1)) and score.unique().numel() == 16


def test_every_method_keeps_and_merges_alike_on_every_processor() -> None:
    """On texts of one token, of two in turn, of blanks and duplicates, and plain ones."""
    here = PROCESSORS.get(torch.backends.cpu.get_cpu_capability())
    if here is None:
        pytest.skip("this processor has no vector instructions to compare with")
    surveys = []
    for capability in ("default", here):
        settings = os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"}
        asked = [sys.executable, "-m", "tests.methods.kept_by_processor"]
        surveys.append(
            json.loads(subprocess.run(asked, env=settings, capture_output=True, check=True, text=True).stdout)
        )
    assert len(surveys[0]) > 200
    assert [name for name, kept in surveys[0].items() if surveys[1][name] != kept] == []


def test_of_equally_similar_targets_the_oldest_is_taken() -> None:
    """Equal to within 2^-16, whether few sources are compared or many, and wherever the slots are."""
    generator = torch.Generator().manual_seed(2)
    for count in (1, 3, 300):
        keys = torch.ones(1, 2, 400, 4) * (1 + 2e-7 * torch.randn(1, 2, 400, 4, generator=generator))
        position = torch.stack([torch.randperm(400, generator=generator) for _ in range(2)])[None].short()
        slots = slots_of(keys, keys, position)
        index = torch.arange(count).expand(1, 2, -1)
        allowed = torch.arange(400).expand(1, 2, -1) >= count
        oldest = position.masked_fill(~allowed, 1000).argmin(-1, keepdim=True).expand(1, 2, count)
        assert torch.equal(nearest_slot(slots, index, allowed)[1], oldest)
        assert torch.equal(nearest(slots, index, allowed, "cosine")[1], oldest)
        pivots = torch.arange(count, 400).expand(1, 2, -1)
        assert torch.equal(nearest_pivot(slots, index, pivots, torch.ones_like(pivots).bool()) + count, oldest)
