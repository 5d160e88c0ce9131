"""Sparse attention by clusters of keys (PQCache, RetroInfer) chooses the slots that its papers choose."""

from __future__ import annotations

import math
from itertools import product

import torch

from kvlab.core.attention.read_attention import attend_chosen
from kvlab.core.methods.sparse_attention import sparse_attention_of
from kvlab.core.methods.sparse_attention.selection import k_means
from tests.methods.sparse_loops import (
    heads,
    held,
    live,
    logit,
    mean_attention,
    slots_read,
    top,
)


def test_pqcache_adds_the_products_of_the_nearest_centroids() -> None:
    query, table = held(holes=True)
    sparse_attention = sparse_attention_of("pqcache/share=0.3/parts=2/bits=2/sinks=1/recent=2")
    assert sparse_attention is not None
    index = sparse_attention.index(table)
    given = sparse_attention.choose(query, table, index)
    for row, head in heads():
        there, scores = live(table, row, head), []
        for member in query[row, head]:
            own = [-math.inf] * table.count
            for slot in there:
                key, total = table.keys[row, head, slot], 0.0
                for part in range(2):
                    here = slice(4 * part, 4 * part + 4)
                    centroids = index["centroids"][row, head, part]
                    nearest = min(range(4), key=lambda c: float((key[here] - centroids[c]).square().sum()))
                    total += float((member[here] * centroids[nearest]).sum())
                own[slot] = total * table.scaling + float(table.bias[row, head, 0, slot])
            scores.append(own)
        first = [slot for slot in there if slot < 1 or slot >= 39]
        for own, slot in product(scores, first):
            own[slot] = -math.inf  # heads are compared by their attention among the others
        expected = top(mean_attention(scores), there, math.ceil(0.3 * len(there)), first)
        assert slots_read(given, row, head) == expected


def test_k_means_ends_where_each_centroid_is_the_mean_of_the_states_nearest_to_it() -> None:
    states = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(1))
    valid = torch.arange(50) < torch.tensor([50, 40, 7])[:, None]
    centroids, member = k_means(states, valid, 5, 60)
    for batch in range(3):
        for number in range(5):
            own = [s for s in range(50) if valid[batch, s] and int(member[batch, s]) == number]
            assert own and torch.allclose(states[batch, own].mean(0), centroids[batch, number], atol=1e-5)
        for slot in range(50):
            gaps = [float((states[batch, slot] - centroid).square().sum()) for centroid in centroids[batch]]
            assert gaps[int(member[batch, slot])] <= min(gaps) + 1e-5
    assert torch.equal(k_means(states[1:2, :40], valid[1:2, :40], 5, 60)[1], member[1:2, :40]), "whatever is beside it"


def test_retroinfer_reads_clusters_and_lets_centroids_stand_for_the_next() -> None:
    query, table = held(holes=True)
    sparse_attention = sparse_attention_of("retroinfer/share=0.2/estimate=0.4/cluster=4/sinks=1/recent=3")
    assert sparse_attention is not None
    index = sparse_attention.index(table)
    given = sparse_attention.choose(query, table, index)
    output = attend_chosen(query, table, given, None)[0]
    for row, head in heads():
        there = live(table, row, head)
        member = {slot: int(index["member"][row, head, slot, 0]) for slot in there}
        steady = {slot for slot in there if slot < 1 or slot >= 38}
        assert {slot for slot in there if member[slot] < 0} == steady
        clusters: dict[int, list[int]] = {}
        for slot in sorted(set(there) - steady):
            clusters.setdefault(member[slot], []).append(slot)
        mass = {slot: math.exp(float(table.bias[row, head, 0, slot])) for slot in there}
        size = {name: sum(mass[slot] for slot in own) for name, own in clusters.items()}
        mean = {
            name: [
                sum(mass[slot] * states[row, head, slot] for slot in own) / size[name]
                for states in (table.keys, table.values)
            ]
            for name, own in clusters.items()
        }
        names = list(clusters)
        scores = mean_attention(
            [[float(one @ mean[name][0]) * table.scaling for name in names] for one in query[row, head]]
        )
        ranked = sorted(names, key=lambda name: -scores[names.index(name)])
        most, near = math.ceil(0.2 * len(names)), math.ceil(0.4 * len(names))
        read = steady | {slot for name in ranked[:most] for slot in clusters[name]}
        assert slots_read(given, row, head) == read
        for place, one in enumerate(query[row, head]):
            parts = [
                (math.exp(logit(query, table, row, head, place, slot)), table.values[row, head, slot]) for slot in read
            ]
            for name in ranked[most : most + near]:
                key, value = mean[name]
                parts.append((size[name] * math.exp(float(one @ key) * table.scaling), value))
            expected = sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)
            assert torch.allclose(output[row, 2 * head + place, 0], expected, atol=1e-5)
