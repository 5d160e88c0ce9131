"""Sparse attention that samples (vAttention, MagicPIG) estimates what its papers promise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvlab.core.methods.sparse_attention import sparse_attention_of
from kvlab.core.methods.sparse_attention.magicpig import MagicPIG
from tests.methods.sparse_loops import (
    held,
    slots_read,
)


def normalisers(sparse_attention: str, draws: int) -> tuple[Tensor, Tensor]:
    """(estimates (draws, 2, 2, 2) of the normaliser of one step, the true one)."""
    query, table = held(slots=150)
    own = sparse_attention_of(sparse_attention)
    assert own is not None
    every = table.logits(query)
    found = []
    for seed in range(draws):
        drawn = replace(table, seed=seed)
        given = own.choose(query, drawn, own.index(drawn))
        assert given.log_weight is not None
        found.append((every.gather(3, given.slots) + given.log_weight).exp().sum(-1))
    return torch.stack(found), every.exp().sum(-1)


@pytest.mark.parametrize(
    "sparse_attention",
    ["magicpig/bits=4/tables=12/sinks=1/recent=8", "vattention/sinks=1/recent=8/base=0.1/epsilon=0.3/delta=0.3"],
)
def test_sampling_estimates_the_normaliser_without_bias(sparse_attention: str) -> None:
    found, true = normalisers(sparse_attention, 400)
    error = (found.mean(0) - true) / (found.std(0) / 20)
    assert (found.std(0) > 0).all(), "it samples"
    assert error.abs().max() < 4, "standard errors"
    assert error.square().mean() < 3


def test_vattention_keeps_its_promise() -> None:
    """The normaliser is off by more than epsilon with a probability of at most delta."""
    found, true = normalisers("vattention/sinks=1/recent=8/base=0.15/epsilon=0.15/delta=0.1", 200)
    off = ((found - true).abs() > 0.15 * true).float().mean()
    assert 0 < off < 0.1 + 0.03


def test_magicpig_samples_with_the_probability_it_assumes() -> None:
    query, table = held(slots=60)
    own = sparse_attention_of("magicpig/bits=3/tables=6/sinks=0/recent=1")
    assert isinstance(own, MagicPIG)
    counts, draws = torch.zeros(60), 500
    for seed in range(draws):
        drawn = replace(table, seed=seed)
        counts[list(slots_read(own.choose(query, drawn, own.index(drawn)), 0, 0, 1))] += 1
    mean = table.keys[0, 0].mean(0)
    for slot in range(59):
        key, one = table.keys[0, 0, slot] - mean, query[0, 0, 1]
        p = (1 - math.acos(float(key @ one) / float(key.norm() * one.norm())) / math.pi) ** 3
        u = 1 - (1 - p) ** 6 - 6 * p * (1 - p) ** 5
        assert abs(float(counts[slot]) / draws - u) < 4.5 * math.sqrt(u * (1 - u) / draws) + 1e-3
    assert counts[59] == draws
