"""Learned attention sinks (gpt-oss): one more logit a query head in every softmax, without a value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvlab.core.attention.slot_attention import slot_attention
from kvlab.core.cache import make_cache
from kvlab.core.errors import UserError
from kvlab.models.load import prepare
from tests.families import tiny_model

BATCH, HEADS, GROUP, SLOTS, DIM = 2, 2, 3, 7, 8


def by_hand(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
    """One query and head at a time, in double precision."""
    output = torch.zeros(query.shape, dtype=torch.float64)
    rows = query.shape[2]
    for row in range(BATCH):
        for head in range(HEADS * GROUP):
            own = head // GROUP
            for place in range(rows):
                reach = SLOTS - rows + place + 1
                logits = key[row, own, :reach].double() @ query[row, head, place].double() * DIM**-0.5
                weight = (logits + bias[row, own, :reach].double()).exp()
                total = weight.sum() + sinks[head].double().exp()
                output[row, head, place] = (weight[:, None] * value[row, own, :reach].double()).sum(0) / total
    return output


@pytest.mark.parametrize("rows", [1, 4])
def test_a_sink_takes_its_share(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS * GROUP, rows, DIM, generator=generator)
    key, value = torch.randn(2, BATCH, HEADS, SLOTS, DIM, generator=generator).unbind()
    bias = torch.randn(BATCH, HEADS, SLOTS, generator=generator)
    sinks = torch.randn(HEADS * GROUP, generator=generator)
    grouped = sinks.view(1, HEADS, GROUP).expand(BATCH, -1, -1)
    given = slot_attention(query, key, value, bias[:, :, None], scaling=DIM**-0.5, sinks=grouped)[0]
    torch.testing.assert_close(given.double(), by_hand(query, key, value, bias, sinks), rtol=1e-5, atol=1e-5)


def test_mass_of_slots_and_sink_is_one() -> None:
    """What the slots of a decode step get is what an attention with one more logit leaves them."""
    model = prepare(tiny_model("gpt-oss"))
    seen_mass: list[Tensor] = []

    class Watcher:
        def attended(self, layer_idx: int, slots: object, seen: object, output: Tensor) -> None:
            logits = seen.last_logits()[:, :, :, 0].double()
            sinks = model.model.layers[layer_idx].self_attn.sinks.double().view(1, 2, 2)
            total = logits.exp().sum(-1) + sinks.exp()
            torch.testing.assert_close(
                seen.last_mass().double(),
                (logits.exp() / total[..., None]).mean(2),
                rtol=1e-4,
                atol=1e-5,
            )
            seen_mass.append(seen.last_mass().sum(-1))

        def compressed(self, *args: object) -> None: ...

    cache = make_cache(model, "h2o", 0.5, observer=Watcher())
    with torch.inference_mode():
        model(torch.arange(3, 23)[None], past_key_values=cache)
        model(torch.tensor([[5]]), past_key_values=cache)
    assert len(seen_mass) == 4 and float(torch.cat(seen_mass).min()) < 0.9


def test_less_says_that_it_has_no_place_beside_a_sink() -> None:
    with pytest.raises(UserError, match="learned attention sinks"):
        make_cache(prepare(tiny_model("gpt-oss")), "less", 0.2, weights="untrained")
