"""Readings choose the slots that their papers choose: against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlab.attention import read_attention
from kvlab.attention.read_attention import attend_chosen
from kvlab.common.errors import UserError
from kvlab.methods import make_method
from kvlab.methods.core.reading import Chosen, Held, Reading
from kvlab.methods.core.rotary import Rotary
from kvlab.methods.readings import READINGS, reading_of
from kvlab.methods.readings.clusters import k_means
from kvlab.methods.readings.magicpig import MagicPIG
from tests.cache.kernels import kernel_module
from tests.methods.reading_loops import attention, heads, held, live, logit, mean_attention, top

STATES = "keys", "values"
HOLES = pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])


def chosen(reading: str, query: Tensor, table: Held) -> Chosen:
    own = reading_of(reading)
    assert own is not None
    return own.choose(query, table, own.index(table))


def slots_read(given: Chosen, row: int, head: int, member: int = 0) -> set[int]:
    """The slots that one head reads; none twice."""
    place = (row, head, member)
    slots = given.slots[place].tolist()
    if given.log_weight is not None:
        pairs = zip(slots, given.log_weight[place].tolist(), strict=True)
        slots = [slot for slot, weight in pairs if weight > -math.inf]
    assert len(slots) == len(set(slots))
    return set(slots)


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


def test_pqcache_adds_the_products_of_the_nearest_centroids() -> None:
    query, table = held(holes=True)
    reading = reading_of("pqcache/share=0.3/parts=2/bits=2/sinks=1/recent=2")
    assert reading is not None
    index = reading.index(table)
    given = reading.choose(query, table, index)
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
    reading = reading_of("retroinfer/share=0.2/estimate=0.4/cluster=4/sinks=1/recent=3")
    assert reading is not None
    index = reading.index(table)
    given = reading.choose(query, table, index)
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


def normalisers(reading: str, draws: int) -> tuple[Tensor, Tensor]:
    """(estimates (draws, 2, 2, 2) of the normaliser of one step, the true one)."""
    query, table = held(slots=150)
    own = reading_of(reading)
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
    "reading",
    ["magicpig/bits=4/tables=12/sinks=1/recent=8", "vattention/sinks=1/recent=8/base=0.1/epsilon=0.3/delta=0.3"],
)
def test_sampling_estimates_the_normaliser_without_bias(reading: str) -> None:
    found, true = normalisers(reading, 400)
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
    own = reading_of("magicpig/bits=3/tables=6/sinks=0/recent=1")
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


@pytest.mark.parametrize("name", READINGS)
def test_an_index_that_tokens_were_added_to_is_the_one_of_all_of_them(name: str) -> None:
    """Where it learns from keys (channels, means, centroids) it keeps what it has learned."""
    reading = reading_of(name)
    assert reading is not None
    _, table = held(slots=90)
    index = reading.index(_first(table, 80))
    kept = [key for key in index if key in ("mean", "centroids", "keys") or index[key].dtype == torch.int64]
    learned = {key: index[key].clone() for key in kept}
    for slot in range(80, 90):
        index = reading.note(index, _first(table, slot + 1))
    anew = reading.index(table)
    for key, part in index.items():
        if key in learned:
            assert torch.equal(part, learned[key])
        elif key in ("bounds", "codes", "labels") and not learned:
            assert torch.equal(part[:, :, : anew[key].shape[2]], anew[key])
        elif key == "channels":
            assert torch.equal(part[..., : anew[key].shape[3]], anew[key])
    if "member" in index:
        assert (index["member"][:, :, 80:90] < 0).all(), "new tokens are read until they are clustered"


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
    reading = reading_of("quest/page=4")
    assert reading is not None
    _, table = held(holes=True)
    index, width = reading.index(_first(table, 30)), 30
    for slot in (int((table.position[0, 0, :30] < 0).nonzero()[0]), 30, 31, 32, 36):
        table.keys[:, :, slot] += 3.0
        table.position[:, :, slot] = 100 + slot
        width = max(width, slot + 1)
        grown = _first(table, width, torch.full((2, 2, 1), slot))
        index = reading.note(index, grown) if slot < 33 else reading.index(grown)
        pages = -(-width // 4)
        assert torch.equal(index["bounds"][:, :, :pages], reading.index(grown)["bounds"][:, :, :pages])


def _first(table: Held, count: int, newest: Tensor | None = None) -> Held:
    newest = torch.full((2, 2, 1), count - 1) if newest is None else newest
    bias = None if table.bias is None else table.bias[..., :count]
    states = table.keys[:, :, :count], table.values[:, :, :count]
    return Held(*states, table.position[:, :, :count], bias, newest, table.tokens_seen, table.scaling)


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


@pytest.mark.parametrize("name", READINGS)
@HOLES
def test_reading_everything_is_dense_attention(name: str, holes: bool) -> None:
    """With soft-capped logits, weighted slots and a learned sink too."""
    sinks = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(3)) if holes else None
    query, table = held(holes=holes, softcap=3.0 if holes else None)
    kind = READINGS[name]
    reading = kind(**dict.fromkeys(("dense_layers", "dense_steps"), 0), **kind.exact_at)
    output, read = attend_chosen(query, table, reading.choose(query, table, reading.index(table)), sinks)
    every = table.logits(query)
    beside = every if sinks is None else torch.cat([every, sinks[..., None]], -1)
    mass = beside.softmax(-1)[..., :41]
    assert torch.allclose(output[:, :, 0].unflatten(1, (2, 2)), mass @ table.values, atol=1e-5)
    assert torch.allclose(read.mass_of(41), mass.mean(2), atol=1e-6)
    assert torch.equal(read.share_read(41), table.valid().float())
    assert torch.equal(read.counts() // read.slots.shape[2], table.live())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"read": "qest"}, "There is no reading called 'qest'.*all, oracle-topk"),
        (
            {"read": "quest/pages=8"},
            "The reading quest has no setting 'pages'; it has: dense_layers, dense_steps, share",
        ),
        (
            {"read": "quest/page=0"},
            "The setting 'page' of the reading quest cannot be 0: .* or equal to 1",
        ),
        ({"read": "quest", "least": "x"}, "The setting 'least' of the reading quest cannot be 'x'"),
        ({"read": "quest", "pages": 3}, "snapkv has no hyper-parameter 'pages'"),
        ({"least": 8}, "snapkv has no hyper-parameter 'least'"),
        ({"read_share": 0.2}, "read=all reads every slot and has no settings: name a reading"),
        ({"read": "quest", "read_share": 0}, "read_share.*greater than or equal to 0.001"),
        ({"read": "quest", "read_share": 1.5}, "read_share.*less than or equal to 1"),
    ],
)
def test_a_bad_reading_is_one_sentence(settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        make_method("snapkv", **settings)
    assert "\n" not in str(refused.value)


def test_settings_of_a_reading_stand_beside_it_or_in_it() -> None:
    beside = make_method("snapkv", read="quest", least=8, read_share=0.2)
    assert beside == make_method("snapkv", read="quest/least=8", read_share=0.2)
    assert beside.reading == reading_of("quest/least=8/share=0.2")
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
    assert "more than there are: all" in (READINGS["quest"].model_fields["slots"].description or "")


def test_keys_that_cannot_be_cut_into_equal_parts_are_refused() -> None:
    query, table = held()
    with pytest.raises(
        UserError, match=r"pqcache cuts keys of width \d+ into 3 unequal parts: choose a number of parts"
    ):
        chosen("pqcache/parts=3", query, table)


@pytest.mark.parametrize("name", READINGS)
def test_each_setting_is_described(name: str) -> None:
    kind: type[Reading] = READINGS[name]
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
@pytest.mark.parametrize("reading", ["oracle-topk/share=0.3", "quest/share=0.3/page=4", "vattention/share=0.2"])
def test_the_fused_kernel_equals_gathering(reading: str, holes: bool, monkeypatch: pytest.MonkeyPatch):
    """Of slots per KV head and per query head, with log mass and importance weights; no other slot is loaded."""
    kernel = kernel_module("kvlab.attention.triton_decode").chosen_attention
    query, table = held(holes=holes)
    given = chosen(reading, query, table)
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
