"""Sums over a prompt's attention, a tile at a time: against a plain loop over queries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kvlab.core.attention import tiles
from kvlab.core.attention.alibi import Alibi
from kvlab.core.attention.layer_handoff import PassResults
from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.tiles import Tiles
from tests.cache.layers import draw

BATCH, HEADS, GROUP, SLOTS, DIM = 2, 2, 3, 37, 8
SCALING = DIM**-0.5


def summed(layer_pass: PassView, first: int, weight: Tensor | None) -> Tensor:
    """(B, H, S) in float64: the weighted sum of all queries' attention, mean over the group."""
    total = torch.zeros(BATCH, HEADS, layer_pass.key.shape[2], dtype=torch.float64)
    for b, h, row, share in looks(layer_pass, first):
        own = 1.0 if weight is None else float(weight.expand(BATCH, -1)[b, row - first])
        total[b, h, : len(share)] += own * share / GROUP
    return total


def looks(layer_pass: PassView, first: int) -> Iterator[tuple[int, int, int, Tensor]]:
    """(batch row, head, row, attention in float64) of one query after the other: softmax over what it may see and its
    learned sink.
    """
    rows, slots = layer_pass.query.shape[2], layer_pass.key.shape[2]
    for b, h, g, row in itertools.product(range(BATCH), range(HEADS), range(GROUP), range(first, rows)):
        reach = slots - rows + row + 1
        logits = layer_pass.key[b, h, :reach].double() @ layer_pass.query[b, h * GROUP + g, row].double() * SCALING
        if layer_pass.softcap is not None:
            logits = layer_pass.softcap * torch.tanh(logits / layer_pass.softcap)
        if layer_pass.alibi is not None:
            behind = layer_pass.alibi.slots[b, h, :reach] - layer_pass.alibi.queries[b, h, row]
            logits = logits + layer_pass.alibi.slopes[b, h, g].double() * behind * SCALING
        if layer_pass.bias is not None:
            logits = logits + layer_pass.bias[b, h, 0, :reach].double()
        if torch.isneginf(logits).all() or (layer_pass.row_valid is not None and not layer_pass.row_valid[b, row]):
            continue
        beside = [] if layer_pass.sinks is None else [layer_pass.sinks[b, h, g].double()]
        yield b, h, row, torch.softmax(torch.cat([logits, *(one[None] for one in beside)]), 0)[:reach]


def a_pass(kind: str, rows: int, dtype: torch.dtype = torch.float32) -> PassView:
    """A pass of `rows` queries: left-padded, after merges, capped, with ALiBi or learned sinks."""
    query = (2 * draw(1, BATCH, HEADS * GROUP, rows, DIM)).to(dtype)
    key, bias, valid = draw(2, BATCH, HEADS, SLOTS, DIM).to(dtype), None, None
    if kind == "padded":
        bias = torch.zeros(BATCH, HEADS, 1, SLOTS)
        bias[1, :, :, :5], valid = -torch.inf, torch.ones(BATCH, rows, dtype=torch.bool)
        valid[1, : max(0, 5 - SLOTS + rows)] = False
    if kind == "merged":
        bias = draw(3, BATCH, HEADS, 1, SLOTS)
        bias[:, 0, :, 3] = -torch.inf
    position = torch.arange(SLOTS).expand(BATCH, HEADS, -1)
    alibi = Alibi(draw(4, BATCH, HEADS, GROUP).abs(), position, position[..., -rows:]) if kind == "alibi" else None
    sinks = draw(5, BATCH, HEADS, GROUP) if kind == "sinks" else None
    return PassView(query, key, bias, valid, SCALING, 3.0 if kind == "capped" else None, alibi=alibi, sinks=sinks)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rows", [SLOTS, 11])
@pytest.mark.parametrize("kind", ["plain", "padded", "merged", "capped", "alibi", "sinks"])
def test_equals_one_query_at_a_time(kind: str, rows: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's log-sum-exps and without, whole prompts and chunks, in tiles of few rows and columns."""
    monkeypatch.setitem(tiles.TILE, "cpu", (4, 1))
    monkeypatch.setattr(tiles, "FEWEST_COLUMNS", 8)
    seen = a_pass(kind, rows)
    if fused:
        seen.attend(draw(6, BATCH, HEADS, SLOTS, DIM))
    for last, weight in ((rows, None), (5, None), (5, draw(7, 5).abs()), (7, draw(8, BATCH, 7).abs())):
        expected = summed(seen, rows - last, weight).float()
        torch.testing.assert_close(seen.column_mass(last, weight), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [SLOTS, 11, 1])
@pytest.mark.parametrize("kind", ["plain", "padded", "merged", "capped", "alibi", "sinks"])
def test_largest_and_root_mean_square(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every single query of the group; padding rows neither count nor give anything."""
    monkeypatch.setitem(tiles.TILE, "cpu", (4, 1))
    monkeypatch.setattr(tiles, "FEWEST_COLUMNS", 8)
    seen = a_pass(kind, rows)
    for last in (rows, 5):
        first = max(rows - last, 0)
        most = torch.zeros(BATCH, HEADS, SLOTS, dtype=torch.float64)
        squares, real = torch.zeros_like(most), torch.zeros(BATCH, 1, 1)
        for b, h, _, share in looks(seen, first):
            reach = len(share)
            most[b, h, :reach] = torch.maximum(most[b, h, :reach], share)
            squares[b, h, :reach] += share**2
        for b in range(BATCH):
            real[b] = sum(1 for row in range(first, rows) if seen.row_valid is None or seen.row_valid[b, row])
        torch.testing.assert_close(seen.column_max(last), most.float(), rtol=1e-5, atol=1e-6)
        expected = (squares / (GROUP * real.clamp_min(1))).sqrt().float()
        torch.testing.assert_close(seen.column_rms(last), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(seen.column_max(last, 13)[..., :13], most.float()[..., :13], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(seen.column_rms(last, 13)[..., :13], expected[..., :13], rtol=1e-5, atol=1e-6)


def test_16_bits_sum_in_32() -> None:
    """Of bfloat16 states the sums are those of their products: rounding a probability to 8 bits would show."""
    seen = a_pass("plain", SLOTS, torch.bfloat16)
    seen.attend(draw(6, BATCH, HEADS, SLOTS, DIM).to(torch.bfloat16))
    torch.testing.assert_close(seen.column_mass(), summed(seen, 0, None).float(), rtol=1e-4, atol=1e-5)


def test_a_tile_is_all_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of a sum over 600 queries has more numbers than a tile, the keys, or the queries."""
    monkeypatch.setitem(tiles.TILE, "cpu", (16, 2**12))
    seen, made = PassView(draw(1, 1, 4, 600, DIM), draw(2, 1, 2, 600, DIM), None, None, SCALING), []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.extend(t.numel() for t in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(t))
            return result

    with Watch():
        seen.column_mass()
        seen.column_max()
        seen.column_rms()
    assert max(made) <= 2 * 600 * (DIM + 1)


def test_sums_computed_together_are_those_computed_alone_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", {"cpu": (8, 2**9)})
    rows, recent = 33, 13
    weights = torch.cat([torch.zeros(rows - recent), 0.9 ** torch.arange(recent - 1.0, -1.0, -1.0)])
    asked: list[tuple[int | None, Tensor | None]] = [(None, None), (recent, weights[-recent:])]
    alone = [a_pass("plain", rows).column_mass(*one) for one in asked]
    seen = a_pass("plain", rows)
    seen.results = PassResults()
    for weight in (torch.ones(rows), weights):
        seen.results.expect(weight)
    together = Tiles.weighted_sums
    counts = []
    monkeypatch.setattr(Tiles, "weighted_sums", lambda *given: counts.append(len(given[2])) or together(*given))
    for one, expected in zip(asked, alone, strict=True):
        assert torch.equal(seen.column_mass(*one), expected)
    assert counts == [2], "both at once, and none alone"
    assert seen.results.charged > 0, "the second is taken over"
