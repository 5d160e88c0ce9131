"""Log-mass attention against an explicit softmax, and streamed scores against eager attention."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.attention import slot_attention as attention_module
from kvlab.core.attention import tiles
from kvlab.core.attention.pass_view import PassView
from kvlab.core.attention.slot_attention import slot_attention

BATCH, HEADS, GROUP, DIM = 2, 2, 3, 8
SCALING = DIM**-0.5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "ROW_BLOCK", 4)
    monkeypatch.setitem(tiles.TILE, "cpu", (4, 1))


def states(rows: int, slots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + slots)

    def draw(heads: int, length: int) -> torch.Tensor:
        return torch.randn(BATCH, heads, length, DIM, generator=generator)

    return draw(HEADS * GROUP, rows), draw(HEADS, slots), draw(HEADS, slots)


def explicit(query, key, bias, softcap=None) -> torch.Tensor:
    """Attention probabilities (B, Hq, q, S), written as the formula."""
    rows, slots = query.shape[2], key.shape[2]
    logits = query @ key.repeat_interleave(GROUP, 1).transpose(-1, -2) * SCALING
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias.expand(-1, -1, GROUP, -1).flatten(1, 2)[:, :, None]
    future = torch.ones(rows, slots).triu(slots - rows + 1).bool()
    return torch.softmax(logits.masked_fill(future, -torch.inf), -1)


def some_bias(slots: int, each: int = 1) -> torch.Tensor:
    """Of a KV head, or with `each` = GROUP of each query head."""
    bias = torch.randn(BATCH, HEADS, each, slots, generator=torch.Generator().manual_seed(3))
    bias[0, 1, :, 1] = -torch.inf
    return bias


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("each", [0, 1, GROUP])
@pytest.mark.parametrize(("rows", "slots"), [(1, 7), (5, 12), (9, 9), (1, 1)])
def test_equals_an_explicit_softmax(rows: int, slots: int, each: int, softcap: float | None) -> None:
    query, key, value = states(rows, slots)
    bias = some_bias(slots, each) if each and slots > 1 else None
    expected = explicit(query, key, bias, softcap) @ value.repeat_interleave(GROUP, 1)
    given = slot_attention(query, key, value, bias, scaling=SCALING, softcap=softcap)[0]
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)


def test_log_mass_counts_as_copies() -> None:
    """A slot with log mass log(n) gets what n copies of it get together."""
    query, key, value = states(1, 6)
    copies = [1, 3, 1, 2, 1, 1]
    repeat = torch.tensor(copies)
    many = slot_attention(
        query, key.repeat_interleave(repeat, 2), value.repeat_interleave(repeat, 2), None, scaling=SCALING
    )[0]
    bias = repeat.float().log().expand(BATCH, HEADS, 1, -1)
    torch.testing.assert_close(slot_attention(query, key, value, bias, scaling=SCALING)[0], many, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [None, 3, 50])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("each", [1, GROUP])
def test_column_mass_equals_eager_columns(rows: int | None, padded: bool, each: int) -> None:
    query, key, _ = states(9, 13)
    row_valid = None
    if padded:
        row_valid = torch.ones(BATCH, 9, dtype=torch.bool)
        row_valid[1, :4] = False
    bias = some_bias(13, each)
    layer_pass = PassView(query, key, bias, row_valid, SCALING)
    mass = explicit(query, key, bias)
    if row_valid is not None:
        mass = mass * row_valid[:, None, :, None]
    expected = mass[:, :, -(rows or 9) :].unflatten(1, (HEADS, GROUP)).mean(2).sum(2)
    torch.testing.assert_close(layer_pass.column_mass(rows), expected, rtol=1e-4, atol=1e-6)


def test_weighted_column_mass() -> None:
    query, key, _ = states(9, 9)
    weight = torch.rand(6)
    layer_pass = PassView(query, key, None, None, SCALING)
    mass = explicit(query, key, None)[:, :, -6:].unflatten(1, (HEADS, GROUP)).mean(2)
    expected = (mass * weight[:, None]).sum(2)
    torch.testing.assert_close(layer_pass.column_mass(6, weight), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [None, 4])
def test_rows_seen_counts_queries(rows: int | None) -> None:
    query, key, _ = states(7, 10)
    row_valid = torch.ones(BATCH, 7, dtype=torch.bool)
    row_valid[1, :2] = False
    can_see = ~torch.ones(7, 10).triu(4).bool()
    expected = (can_see[None] & row_valid[..., None])[:, -(rows or 7) :].sum(1).float()
    given = PassView(query, key, None, row_valid, SCALING).rows_seen(rows)
    assert torch.equal(given.expand(BATCH, 1, 10)[:, 0], expected)


@pytest.mark.parametrize("each", [1, GROUP])
def test_one_pass_gives_output_and_mass(each: int) -> None:
    query, key, value = states(1, 8)
    bias = some_bias(8, each)
    layer_pass = PassView(query, key, bias, None, SCALING)
    output = layer_pass.attend(value, every_step=True)
    torch.testing.assert_close(
        output, slot_attention(query, key, value, bias, scaling=SCALING)[0], rtol=1e-5, atol=1e-6
    )
    expected = explicit(query, key, bias).unflatten(1, (HEADS, GROUP)).mean(2)[:, :, 0]
    torch.testing.assert_close(layer_pass.last_mass(), expected, rtol=1e-5, atol=1e-6)
