"""Sparse attention chooses the slots that its papers choose: against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvlab.core.attention import read_attention
from kvlab.core.attention.read_attention import attend_chosen
from kvlab.core.contract.sparse_attention import Held, SparseAttention
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS, sparse_attention_of
from tests.cache.kernels import kernel_module
from tests.methods.sparse_loops import (
    HOLES,
    attention,
    chosen,
    first_slots,
    heads,
    held,
    live,
    mean_attention,
    slots_read,
    top,
)

STATES = "keys", "values"


@HOLES
def test_top_k_is_that_of_the_mean_attention(holes: bool) -> None:
    query, table = held(holes=holes)
    given = chosen("oracle-topk/share=0.2", query, table)
    for row, head in heads():
        there = live(table, row, head)
        expected = top(attention(query, table, row, head), there, math.ceil(0.2 * len(there)), [40])
        assert slots_read(given, row, head) == expected


@HOLES
def test_top_p_is_the_smallest_set_with_that_share_of_the_attention(holes: bool) -> None:
    query, table = held(holes=holes)
    given, sizes = chosen("oracle-topp/mass=0.6", query, table), set()
    for row, head in heads():
        shares, expected, total = attention(query, table, row, head), {40}, 0.0
        total = shares[40]
        for slot in sorted(set(live(table, row, head)) - {40}, key=lambda slot: -shares[slot]):
            if total >= 0.6:
                break
            expected.add(slot)
            total += shares[slot]
        assert slots_read(given, row, head) == expected
        sizes.add(len(expected))
    assert len(sizes) > 1, "flat heads read more"


@HOLES
def test_double_sparsity_compares_the_heaviest_channels(holes: bool) -> None:
    query, table = held(holes=holes)
    given = chosen("double-sparsity/channel_share=0.25/share=0.2", query, table)
    for row, head in heads():
        there = live(table, row, head)
        weight = [sum(abs(float(table.keys[row, head, slot, channel])) for slot in there) for channel in range(8)]
        channels = sorted(range(8), key=lambda channel: -weight[channel])[:2]
        approximate = partial_attention(query, table, row, head, channels)
        assert slots_read(given, row, head) == top(approximate, there, math.ceil(0.2 * len(there)), [40])


def partial_attention(query: Tensor, table: Held, row: int, head: int, channels: list[int]) -> list[float]:
    scores = []
    for member in query[row, head]:
        own = [
            sum(float(member[c]) * float(table.keys[row, head, slot, c]) for c in channels) * table.scaling
            + (0.0 if table.bias is None else float(table.bias[row, head, 0, slot]))
            for slot in range(table.count)
        ]
        scores.append([score if int(table.position[row, head, s]) >= 0 else -math.inf for s, score in enumerate(own)])
    return mean_attention(scores)


@pytest.mark.parametrize("name", SPARSE_ATTENTIONS)
def test_an_index_that_tokens_were_added_to_is_the_one_of_all_of_them(name: str) -> None:
    """Where it learns from keys (channels, means, centroids) it keeps what it has learned."""
    sparse_attention = sparse_attention_of(name)
    assert sparse_attention is not None
    _, table = held(slots=90)
    index = sparse_attention.index(first_slots(table, 80))
    kept = [key for key in index if key in ("mean", "centroids", "keys") or index[key].dtype == torch.int64]
    learned = {key: index[key].clone() for key in kept}
    for slot in range(80, 90):
        index = sparse_attention.note(index, first_slots(table, slot + 1))
    anew = sparse_attention.index(table)
    for key, part in index.items():
        if key in learned:
            assert torch.equal(part, learned[key])
        elif key in ("bounds", "codes", "labels") and not learned:
            assert torch.equal(part[:, :, : anew[key].shape[2]], anew[key])
        elif key == "channels":
            assert torch.equal(part[..., : anew[key].shape[3]], anew[key])
    if "member" in index:
        assert (index["member"][:, :, 80:90] < 0).all(), "new tokens are read until they are clustered"


def test_random_slots_are_other_ones_at_each_step_and_the_same_in_any_batch() -> None:
    query, table = held(slots=200)
    given = chosen("random", query, table)
    later = chosen("random", query, held(slots=200, tokens_seen=torch.tensor([201, 201]))[1])
    alone = Held(
        *(part[1:, :1] for part in (table.keys, table.values, table.position)), None, table.newest[1:, :1],
        table.tokens_seen[1:], table.scaling, dense=True,
    )  # fmt: skip
    for row, head in heads():
        now, then = slots_read(given, row, head), slots_read(later, row, head)
        assert len(now) == 20 and 199 in now and len(now & then) < 10
    assert slots_read(chosen("random", query[1:, :1], alone), 0, 0) == slots_read(given, 1, 0)
    assert len(slots_read(given, 0, 0) & slots_read(given, 0, 1)) < 10, "heads draw by themselves"


@pytest.mark.parametrize("name", SPARSE_ATTENTIONS)
@HOLES
def test_reading_everything_is_dense_attention(name: str, holes: bool) -> None:
    """With soft-capped logits, weighted slots and a learned sink too."""
    sinks = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(3)) if holes else None
    query, table = held(holes=holes, softcap=3.0 if holes else None)
    kind = SPARSE_ATTENTIONS[name]
    sparse_attention = kind(**dict.fromkeys(("dense_layers", "dense_steps"), 0), **kind.exact_at)
    output, read = attend_chosen(
        query, table, sparse_attention.choose(query, table, sparse_attention.index(table)), sinks
    )
    every = table.logits(query)
    beside = every if sinks is None else torch.cat([every, sinks[..., None]], -1)
    mass = beside.softmax(-1)[..., :41]
    assert torch.allclose(output[:, :, 0].unflatten(1, (2, 2)), mass @ table.values, atol=1e-5)
    assert torch.allclose(read.mass_of(41), mass.mean(2), atol=1e-6)
    assert torch.equal(read.share_read(41), table.valid().float())
    assert torch.equal(read.read.sum((2, 3)) // read.slots.shape[2], table.live())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"read": "qest"}, "There is no sparse attention called 'qest'.*all, oracle-topk"),
        (
            {"read": "quest/pages=8"},
            "The sparse attention quest has no setting 'pages'; it has: dense_layers, dense_steps, share",
        ),
        (
            {"read": "quest/page=0"},
            "The setting 'page' of the sparse attention quest cannot be 0: .* or equal to 1",
        ),
        ({"read": "quest", "least": "x"}, "The setting 'least' of the sparse attention quest cannot be 'x'"),
        ({"read": "quest", "pages": 3}, "snapkv has no hyper-parameter 'pages'"),
        ({"least": 8}, "snapkv has no hyper-parameter 'least'"),
        ({"read_share": 0.2}, "read=all reads every slot and has no settings: name sparse attention"),
        ({"read": "quest", "read_share": 0}, "read_share.*greater than or equal to 0.001"),
        ({"read": "quest", "read_share": 1.5}, "read_share.*less than or equal to 1"),
    ],
)
def test_a_bad_sparse_attention_is_one_sentence(settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        make_method("snapkv", **settings)
    assert "\n" not in str(refused.value)


def test_settings_of_sparse_attention_stand_beside_it_or_in_it() -> None:
    beside = make_method("snapkv", read="quest", least=8, read_share=0.2)
    assert beside == make_method("snapkv", read="quest/least=8", read_share=0.2)
    assert beside.sparse_attention == sparse_attention_of("quest/least=8/share=0.2")
    assert beside.model_dump()["read"] == "quest/least=8"
    assert make_method("snapkv", **beside.model_dump()) == beside
    own = make_method("snapkv", read="quest/page=8", page=4)
    assert (own.page, own.read) == (4, "quest/page=8"), "a setting of the method is the method's"
    assert not {"read", "read_share"} & make_method("snapkv").model_dump().keys(), "as in older runs"


def test_more_slots_than_there_are_reads_all() -> None:
    """Which the setting says of itself."""
    query, table = held()
    for name in ("oracle-topk", "quest", "random", "double-sparsity", "rocketkv", "pqcache/bits=3"):
        assert slots_read(chosen(f"{name}/slots=5000", query, table), 0, 0) == set(range(41))
    assert "more than there are: all" in (SPARSE_ATTENTIONS["quest"].model_fields["slots"].description or "")


def test_keys_that_cannot_be_cut_into_equal_parts_are_refused() -> None:
    query, table = held()
    with pytest.raises(
        UserError, match=r"pqcache cuts keys of width \d+ into 3 unequal parts: choose a number of parts"
    ):
        chosen("pqcache/parts=3", query, table)


@pytest.mark.parametrize("name", SPARSE_ATTENTIONS)
def test_each_setting_is_described(name: str) -> None:
    kind: type[SparseAttention] = SPARSE_ATTENTIONS[name]
    assert kind.title and (kind.__doc__ or "").strip()
    assert all(field.description for field in kind.model_fields.values())
    assert set(kind.exact_at) <= set(kind.model_fields)


@pytest.mark.parametrize("name", ["oracle-topk/share=0.7", "vattention/sinks=1/recent=3", "quest/page=4"])
def test_slots_gathered_a_few_at_a_time_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, table = held(holes=True)
    given = chosen(name, query, table)
    together, read = attend_chosen(query, table, given, None)
    monkeypatch.setattr(read_attention, "BLOCK_BYTES", 1)
    monkeypatch.setattr(read_attention, "LEAST_BLOCK", 5)
    apart, again = attend_chosen(query, table, given, None)
    assert torch.allclose(apart, together, atol=1e-6)
    assert torch.allclose(again.mass, read.mass, atol=1e-7)


@HOLES
@pytest.mark.parametrize(
    "sparse_attention", ["oracle-topk/share=0.3", "quest/share=0.3/page=4", "vattention/share=0.2"]
)
def test_the_fused_kernel_equals_gathering(sparse_attention: str, holes: bool, monkeypatch: pytest.MonkeyPatch):
    """Of slots per KV head and per query head, with log mass and importance weights; no other slot is loaded."""
    kernel = kernel_module("kvlab.core.attention.triton_decode").chosen_attention
    query, table = held(holes=holes)
    given = chosen(sparse_attention, query, table)
    output, gathered = attend_chosen(query, table, given, None)
    read = torch.zeros(table.position.shape, dtype=torch.bool).scatter_(2, given.slots.flatten(2), True)
    unread = replace(table, **{name: getattr(table, name).masked_fill(~read[..., None], math.nan) for name in STATES})
    launched = []

    def launch(*given: object) -> tuple[Tensor, Tensor]:
        launched.append(given)
        return kernel(*given)

    monkeypatch.setattr(read_attention, "attention_over_chosen", launch)
    ours, fused = attend_chosen(query, unread, given, None)
    torch.testing.assert_close(ours, output, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(fused.mass, gathered.mass, rtol=2e-5, atol=2e-5)
    assert (fused.read == gathered.read).all() and len(launched) == 1
