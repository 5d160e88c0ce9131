"""Log mass as further coordinates of query and key: the same attention as with a bias."""

from __future__ import annotations

import pytest
import torch

from kvlab.core.attention import slot_attention as attention_module
from kvlab.core.attention.slot_attention import channel_attention, slot_attention

HEADS, DIM = 3, 20
SCALING = DIM**-0.5


def states(rows: int, slots: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + slots)
    sizes = [(rows, DIM), (slots, DIM), (slots, DIM)]
    drawn = [torch.randn(2, HEADS, *size, generator=generator).to(dtype) for size in sizes]
    bias = 4 * torch.randn(2, HEADS, slots, generator=generator)
    bias[0, 1, : slots // 2] = -torch.inf
    return [*drawn, bias]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize(("rows", "slots"), [(1, 9), (12, 12)])
def test_equals_an_explicit_bias(rows: int, slots: int, dtype: torch.dtype, close: float) -> None:
    """16-bit tables too: their log mass is not rounded to 16 bits."""
    query, key, value, bias = states(rows, slots, dtype)
    given = channel_attention(query, key, value, bias, SCALING, causal=rows > 1)[0].float()
    logits = query.float() @ key.float().transpose(-1, -2) * SCALING + bias[:, :, None]
    logits = logits.masked_fill(torch.ones(rows, slots).triu(slots - rows + 1).bool(), -torch.inf)
    sees = ~torch.isneginf(logits).all(-1)
    expected = torch.softmax(logits, -1) @ value.float()
    assert torch.isfinite(given).all(), "a query that sees nothing must not turn into NaN"
    torch.testing.assert_close(given[sees], expected[sees], rtol=close, atol=close)


def test_a_padded_prompt_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, bias = states(12, 12, torch.float32)
    outputs = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(attention_module, "CHANNELS_ON", devices)
        outputs.append(slot_attention(query, key, value, bias[:, :, None], scaling=SCALING)[0])
    sees = ~torch.isneginf(bias).cummin(-1).values.bool()
    torch.testing.assert_close(outputs[0][sees], outputs[1][sees], rtol=1e-5, atol=1e-5)
