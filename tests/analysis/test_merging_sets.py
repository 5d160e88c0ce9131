"""Sets from stored keys are those of the algorithm read literally, and those the method finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.methods.settlers.consecutive import find_sets, nearness
from kvlab.views.similarity import consecutive_sets, set_count


def walk(tokens: int, seed: int, memory: int = 4, width: int = 16) -> np.ndarray:
    """Unit vectors whose neighbours resemble each other."""
    steps = np.random.default_rng(seed).normal(size=(tokens + memory, width))
    raw = np.stack([steps[place : place + memory].sum(0) for place in range(tokens)])
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def scan(unit: np.ndarray, threshold: float) -> list[int]:
    """Algorithm 1, token by token: each token's anchor."""
    anchor = [len(unit) - 1] * len(unit)
    for place in range(len(unit) - 2, -1, -1):
        here = anchor[place + 1]
        anchor[place] = here if float(unit[place] @ unit[here]) > threshold else place
    return anchor


@settings(max_examples=80, deadline=None)
@given(
    tokens=st.integers(1, 200), seed=st.integers(0, 999), threshold=st.floats(-1, 1), memory=st.sampled_from([1, 4, 90])
)
def test_sets_are_those_of_the_scan(tokens: int, seed: int, threshold: float, memory: int) -> None:
    unit = walk(tokens, seed, memory)
    expected = scan(unit, threshold)
    assert consecutive_sets(unit, threshold).tolist() == expected
    assert set_count(np.array(expected)) == len(set(expected))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), threshold=st.floats(-0.9, 0.9))
def test_sets_are_those_the_method_finds(seed: int, threshold: float) -> None:
    unit = walk(80, seed)
    may_merge = torch.ones(1, 1, 80, dtype=torch.bool)
    near = nearness(torch.from_numpy(unit)[None, None], torch.arange(80)[None, None], may_merge, longest=128)
    sets = find_sets(near, may_merge, torch.ones(1, 1), threshold)
    assert consecutive_sets(unit, threshold).tolist() == sets.anchor[0, 0].tolist()


def test_alike_keys_are_one_set_however_long() -> None:
    unit = np.tile(np.eye(4, dtype=np.float32)[0], (5000, 1))
    assert set_count(consecutive_sets(unit, 0.9)) == 1


@pytest.mark.parametrize("tokens", [0, 1])
def test_texts_without_neighbours(tokens: int) -> None:
    assert set_count(consecutive_sets(walk(3, 0)[:tokens], 0.5)) == tokens
