"""Sparse attention to whole pages and chunks (RocketKV, ShadowKV, Quest) chooses those that its papers choose."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlab.core.attention.read_attention import attend_chosen
from kvlab.core.cache import make_cache
from kvlab.core.contract.rotary import Rotary
from kvlab.core.contract.sparse_attention import Chosen, Held, Index, SparseAttention
from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS, sparse_attention_of
from kvlab.models.load import prepare
from tests.families import tiny_model
from tests.methods.sparse_loops import (
    HOLES,
    chosen,
    first_slots,
    heads,
    held,
    live,
    logit,
    mean_attention,
    slots_read,
)


@HOLES
def test_rocketkv_reads_one_bound_of_the_largest_channels(holes: bool) -> None:
    query, table = held(holes=holes)
    given = chosen("rocketkv/share=0.3/channel_share=0.5", query, table)
    for row, head in heads():
        group, there, scores = query[row, head], live(table, row, head), []
        channels = sorted(range(8), key=lambda c: -sum(abs(float(member[c])) for member in group))[:4]
        pages = [[slot for slot in there if slot // 4 == page] for page in range(11)]
        for member in group:
            own = []
            for page in pages:
                total = 0.0
                for c in channels:
                    numbers = [float(table.keys[row, head, slot, c]) for slot in page]
                    bound = max if sum(float(other[c]) for other in group) > 0 else min
                    total += float(member[c]) * bound(numbers, default=0.0)
                mass = [0.0 if table.bias is None else float(table.bias[row, head, 0, slot]) for slot in page]
                compared = sum(abs(float(member[c])) for c in channels) / sum(abs(float(one)) for one in member)
                own.append(total * table.scaling / math.sqrt(compared) + max(mass, default=-math.inf))
            scores.append(own)
        ranked = sorted(range(11), key=lambda page: (page != 10, -mean_attention(scores)[page]))
        read = ranked[: math.ceil(0.3 * sum(map(bool, pages)))]
        assert slots_read(given, row, head) & set(there) == {slot for page in read for slot in pages[page]}


@HOLES
def test_shadowkv_reads_chunks_by_their_means_with_keys_of_low_rank(holes: bool) -> None:
    """Against a singular value decomposition of the keys turned back to position 0, and loops over chunks."""
    frequencies = [1.0, 0.3, 0.1, 0.01]
    query, table = held(holes=holes, rotary=Rotary(torch.tensor(frequencies)))
    given = chosen("shadowkv/share=0.3/rank_share=0.25/chunk=4/recent=3/outliers=0.2", query, table)
    output = attend_chosen(query, table, given, None)[0]
    for row in range(2):
        before = np.zeros((41, 2, 8))
        for head, slot in product(range(2), range(41)):
            if int(table.position[row, head, slot]) >= 0:
                key, place = table.keys[row, head, slot].double(), -float(table.position[row, head, slot])
                before[slot, head] = turned(key.numpy(), place, frequencies)
        u, s, v = np.linalg.svd(before.reshape(41, 16), full_matrices=False)
        low = (u[:, :4] * s[:4] @ v[:4]).reshape(41, 2, 8)
        for head in range(2):
            there, keys = live(table, row, head), table.keys[row, head]
            chunks = [[slot for slot in there if slot // 4 == chunk] for chunk in range(11)]
            near = [chunk for chunk in range(11) if any(slot >= 38 for slot in chunks[chunk])]
            others = [chunk for chunk in range(11) if chunks[chunk] and chunk not in near]
            marks = {chunk: torch.stack([keys[slot] for slot in chunks[chunk]]).mean(0) for chunk in others}
            least = {
                c: min(float(torch.cosine_similarity(keys[s], marks[c], dim=0)) for s in chunks[c]) for c in others
            }
            outliers = sorted(others, key=lambda chunk: least[chunk])[: math.ceil(0.2 * len(others))]
            rest = [chunk for chunk in others if chunk not in outliers]
            bias = [0.0 if table.bias is None else float(table.bias[row, head, 0, slot]) for slot in range(41)]
            score = dict.fromkeys(rest, 0.0)
            for member in query[row, head]:
                own = {
                    c: math.exp(float(member @ marks[c]) * table.scaling + max(bias[s] for s in chunks[c]))
                    for c in rest
                }
                score = {c: max(score[c], own[c] / sum(own.values())) for c in rest}
            best = sorted(rest, key=lambda chunk: -score[chunk])[: math.ceil(0.3 * len(rest))]
            read = {slot for chunk in [*near, *outliers, *best] for slot in chunks[chunk]}
            assert slots_read(given, row, head) == read
            for place, member in enumerate(query[row, head]):
                total, weights = torch.zeros(8), 0.0
                for slot in read:
                    key = keys[slot].double().numpy()
                    if slot // 4 in best:
                        key = turned(low[slot, head], float(table.position[row, head, slot]), frequencies)
                    weight = math.exp(float(member.double().numpy() @ key) * table.scaling + bias[slot])
                    total, weights = total + weight * table.values[row, head, slot], weights + weight
                assert torch.allclose(output[row, 2 * head + place, 0], total / weights, atol=1e-4)


def turned(key: np.ndarray, by: float, frequencies: list[float]) -> np.ndarray:
    """A key (8,) turned by `by` positions; coordinate i turns with i + 4."""
    moved = (key[:4] + 1j * key[4:]) * np.exp(1j * by * np.array(frequencies))
    return np.concatenate([moved.real, moved.imag])


@HOLES
def test_quest_reads_the_pages_with_the_highest_bounds(holes: bool) -> None:
    query, table = held(holes=holes)
    given = chosen("quest/share=0.3/page=4/least=1", query, table)
    for row, head in heads():
        there, bounds = live(table, row, head), []
        pages = [[slot for slot in there if slot // 4 == page] for page in range(11)]
        for member in query[row, head]:
            own = []
            for page in pages:
                total = 0.0
                for channel in range(8):
                    numbers = [float(table.keys[row, head, slot, channel]) * float(member[channel]) for slot in page]
                    total += max(numbers, default=0.0)
                mass = [0.0 if table.bias is None else float(table.bias[row, head, 0, slot]) for slot in page]
                own.append(total * table.scaling + max(mass, default=-math.inf))
            bounds.append(own)
        for member, own in enumerate(bounds):
            for page, bound in zip(pages, own, strict=True):
                assert all(logit(query, table, row, head, member, slot) <= bound + 1e-5 for slot in page)
        ranked = sorted(range(11), key=lambda page: (page != 10, -mean_attention(bounds)[page]))
        pages_read = ranked[: math.ceil(0.3 * sum(map(bool, pages)))]
        read = slots_read(given, row, head) & set(there)
        assert read == {slot for page in pages_read for slot in pages[page]}


def test_quest_keeps_its_bounds_when_tokens_arrive() -> None:
    """One at a time, into free slots and behind the last: as if the index were built anew."""
    sparse_attention = sparse_attention_of("quest/page=4")
    assert sparse_attention is not None
    _, table = held(holes=True)
    index, width = sparse_attention.index(first_slots(table, 30)), 30
    for slot in (int((table.position[0, 0, :30] < 0).nonzero()[0]), 30, 31, 32, 36):
        table.keys[:, :, slot] += 3.0
        table.position[:, :, slot] = 100 + slot
        width = max(width, slot + 1)
        grown = first_slots(table, width, torch.full((2, 2, 1), slot))
        index = sparse_attention.note(index, grown) if slot < 33 else sparse_attention.index(grown)
        pages = -(-width // 4)
        assert torch.equal(index["bounds"][:, :, :pages], sparse_attention.index(grown)["bounds"][:, :, :pages])


@pytest.mark.parametrize(
    "name", ["quest/page=4/least=1/dense_layers=0", "rocketkv/page=4", "shadowkv/chunk=4/recent=4"]
)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("h2o", {}),
        ("h2o", {"compress_every": 8}),
        ("rkv", {"buffer": 8}),
        ("snapkv", {"decode": "budget", "buffer": 8}),
    ],
)
def test_bounds_and_means_are_of_held_keys_only(
    name: str, method: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every decode step, whether a decision evicts one slot of a head or a block of them."""
    kind, checked = SPARSE_ATTENTIONS[name.split("/")[0]], []

    def choose(self: SparseAttention, query: Tensor, table: Held, index: Index, plain=kind.choose) -> Chosen:
        checked.append(_check_index(index, table))
        return plain(self, query, table, index)

    monkeypatch.setattr(kind, "choose", choose)
    model = prepare(tiny_model("llama", num_hidden_layers=2))
    cache = make_cache(model, method, 40, read=name, **settings)
    ids = torch.randint(3, 97, (1, 110), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        model(ids[:, :70], past_key_values=cache)
        for step in range(70, 110):
            model(ids[:, step : step + 1], past_key_values=cache)
    assert len(checked) == 2 * 40


def _check_index(index: Index, table: Held) -> None:
    """Pages or chunks of four slots, by their definition in a plain loop; empty ones are zero or hidden."""
    for head, first in product(range(table.keys.shape[1]), range(0, table.count, 4)):
        slots = [slot for slot in range(first, min(first + 4, table.count)) if table.position[0, head, slot] >= 0]
        if "landmarks" in index:
            slots = [slot for slot in slots if not index["exact"][0, head, slot, 0]]
        if not slots:
            continue
        own = table.keys[0, head, slots]
        if "landmarks" in index:
            assert torch.allclose(index["landmarks"][0, head, first // 4], own.mean(0), atol=1e-5)
        else:
            page = (
                index["bounds"][0, head, first // 4] if "bounds" in index else index["channels"][0, head, :, first // 4]
            )
            assert torch.equal(page, torch.cat([own.amax(0), own.amin(0)]))
