"""Tiles from block means equal pooling the whole matrix; maxima and bands equal looking at every pair."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.views import similarity as maps
from kvlab.views.frames.float16 import block_edges, block_means
from kvlab.views.frames.lineage import fold
from kvlab.views.similarity import merge_sets, outlines


def units(tokens: int, seed: int = 0, width: int = 16) -> np.ndarray:
    raw = np.random.default_rng(seed).normal(size=(tokens, width))
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float16)


def pooled(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray, pool: np.ufunc) -> np.ndarray:
    return np.array([[pool(matrix[a:b, c:d]) for c, d in pairwise(columns)] for a, b in pairwise(rows)])


def pairwise(edges: np.ndarray) -> list[tuple[int, int]]:
    return list(itertools.pairwise(edges))


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 120),
    size=st.integers(1, 40),
    mode=st.sampled_from(["mean", "max"]),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_a_tile_equals_pooling_the_full_matrix(tokens: int, size: int, mode: str, window: tuple):
    unit = units(tokens)
    rows, columns = (
        (int(a * (tokens - 1)), int(a * (tokens - 1)) + 1 + int(b * (tokens - 1 - int(a * (tokens - 1)))))
        for a, b in (window[:2], window[2:])
    )
    tile = maps.tile(unit, rows, columns, size, mode)
    assert max(tile.values.shape) <= size
    matrix = unit.astype(np.float32) @ unit.astype(np.float32).T
    expected = pooled(matrix, tile.row_edges, tile.column_edges, np.mean if mode == "mean" else np.max)
    assert np.allclose(tile.values, expected, atol=2e-6)
    assert (tile.row_edges[0], tile.row_edges[-1]) == rows


def test_raw_pairs_are_the_cosines_themselves():
    unit = units(50)
    tile = maps.tile(unit, (10, 40), (0, 30), 64, "raw")
    assert np.allclose(tile.values, unit[10:40].astype(np.float32) @ unit[:30].astype(np.float32).T, atol=1e-6)
    assert tile.frame().index.tolist() == list(range(10, 40))


def test_windows_too_large_for_pairs_say_so():
    unit = units(3000, width=4)
    with pytest.raises(UserError, match="zoom in"):
        maps.tile(unit, (0, 3000), (0, 3000), 64, "max")
    with pytest.raises(UserError, match="zoom in"):
        maps.tile(unit, (0, 100), (0, 100), 64, "raw")
    assert maps.allowed_modes(3000, 512) == ("mean",)
    assert maps.allowed_modes(1000, 512) == ("mean", "max")
    assert maps.allowed_modes(512, 512) == ("raw",)


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 60), offsets=st.integers(1, 80), blocks=st.integers(1, 70))
def test_the_band_is_the_mean_over_each_diagonal(tokens: int, offsets: int, blocks: int):
    unit = units(tokens)
    band = maps.diagonal_band(unit, offsets, blocks)
    matrix = unit.astype(np.float32) @ unit.astype(np.float32).T
    edges = block_edges(0, tokens, blocks)
    assert band.shape == (min(offsets, tokens - 1), len(edges) - 1)
    for offset in band.index:
        for column, (start, stop) in enumerate(pairwise(edges)):
            pairs = [matrix[token, token - offset] for token in range(max(start, offset), stop)]
            found = band.loc[offset].iloc[column]
            assert np.isnan(found) if not pairs else found == pytest.approx(np.mean(pairs), abs=2e-6)


def test_locality_tells_near_from_far():
    directions = units(20, width=32).astype(np.float32)
    unit = np.repeat(directions, 30, axis=0).astype(np.float16)
    found = maps.locality(unit)
    assert found["near"] > 0.7
    assert abs(found["far"]) < 0.2
    profile = maps.neighbour_profile(unit, 100, reach=5)
    assert profile["offset"].tolist() == list(range(-5, 6))
    assert profile.set_index("offset").loc[0, "similarity"] == pytest.approx(1, abs=1e-3)
    assert maps.thumbnail(unit, 48).shape == (48, 48)


@given(start=st.integers(0, 50), length=st.integers(1, 300), blocks=st.integers(1, 320))
def test_blocks_cover_the_window_without_gaps(start: int, length: int, blocks: int):
    edges = block_edges(start, start + length, blocks)
    assert (np.diff(edges) > 0).all()
    assert np.diff(edges).max() - np.diff(edges).min() <= 1
    assert (edges[0], edges[-1], len(edges) - 1) == (start, start + length, min(blocks, length))


def test_block_means_of_vectors():
    values = np.arange(12.0).reshape(6, 2)
    assert block_means(values, np.array([0, 2, 6])).tolist() == [[1.0, 2.0], [7.0, 8.0]]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (23, 8), (100, 17), (101, 100)])
def test_block_means_are_those_of_each_block_alone(kind: type, tokens: int, blocks: int):
    values = np.random.default_rng(tokens).standard_normal((tokens, 3)).astype(kind)
    edges = block_edges(40, 40 + tokens, blocks)
    alone = [values[start:stop].astype(np.float64).mean(axis=0) for start, stop in itertools.pairwise(edges - 40)]
    assert np.abs(block_means(values, edges) - np.array(alone)).max() < 1e-6


def test_outlines_cover_exactly_the_pairs_with_their_pivot_that_share_a_slot():
    rows = [(0, "merge", 2, 3), (0, "merge", 4, 3), (0, "merge", 7, 3), (0, "merge", 8, 3), (0, "evict", 5, -1)]
    events = pd.DataFrame(rows, columns=["step", "kind", "source", "target"]).assign(value_weight=0.5)
    lineage = fold(events, pd.DataFrame({"step": [0], "tokens_seen": [12]}))
    sets = merge_sets(lineage, 0)
    assert sets["position"].tolist() == [2, 3, 4, 7, 8]
    assert (sets["votes"] == 5).all()
    found = outlines(sets, (0, 12))
    assert found[["start", "stop", "pivot_start", "pivot_stop"]].to_numpy().tolist() == [[2, 5, 2, 5], [7, 9, 2, 5]]
    assert outlines(sets, (9, 12)).empty
    assert outlines(sets.head(0), (0, 12)).empty


@given(tokens=st.integers(1, 80), near=st.integers(1, 10))
def test_locality_is_the_mean_over_all_pairs(tokens: int, near: int):
    unit = units(tokens)
    matrix = unit.astype(np.float32) @ unit.astype(np.float32).T
    distance = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
    found = maps.locality(unit, near)
    for name, pairs in (("near", (distance > 0) & (distance <= near)), ("far", distance > near)):
        expected = matrix[pairs].mean() if pairs.any() else np.nan
        assert found[name] == pytest.approx(expected, abs=1e-4, nan_ok=True)
