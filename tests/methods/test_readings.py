"""Readings choose the slots that their papers choose: against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvlab.attention.read_attention import attend_chosen
from kvlab.common.errors import UserError
from kvlab.methods import make_method
from kvlab.methods.core.reading import Chosen, Held, Reading
from kvlab.methods.readings import READINGS, reading_of
from tests.methods.reading_loops import attention, heads, held, live, logit, mean_attention, top

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
        pages_read = ranked[: math.ceil(math.ceil(0.3 * len(there)) / 4)]
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
        ({"read": "quest/pages=8"}, "The reading quest has no setting 'pages'; it has: share, slots"),
        (
            {"read": "quest/page=0"},
            "The setting 'page' of the reading quest cannot be 0: .* or equal to 1",
        ),
        ({"read": "quest", "page": "x"}, "The setting 'page' of the reading quest cannot be 'x'"),
        ({"read": "quest", "pages": 3}, "snapkv has no hyper-parameter 'pages'"),
        ({"page": 8}, "snapkv has no hyper-parameter 'page'"),
        ({"read_share": 0.2}, "read=all reads every slot and has no settings: name a reading"),
        ({"read": "quest", "read_share": 0}, "read_share.*greater than 0"),
        ({"read": "quest", "read_share": 1.5}, "read_share.*less than or equal to 1"),
    ],
)
def test_a_bad_reading_is_one_sentence(settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        make_method("snapkv", **settings)
    assert "\n" not in str(refused.value)


def test_settings_of_a_reading_stand_beside_it_or_in_it() -> None:
    beside = make_method("snapkv", read="quest", page=8, read_share=0.2)
    assert beside == make_method("snapkv", read="quest/page=8", read_share=0.2)
    assert beside.reading == reading_of("quest/page=8/share=0.2")
    assert beside.model_dump()["read"] == "quest/page=8"
    assert make_method("snapkv", **beside.model_dump()) == beside
    assert not {"read", "read_share"} & make_method("snapkv").model_dump().keys(), "as in older runs"


def test_more_slots_than_there_are_reads_all() -> None:
    query, table = held()
    for name in ("oracle-topk", "quest", "random"):
        assert slots_read(chosen(f"{name}/slots=5000", query, table), 0, 0) == set(range(41))


@pytest.mark.parametrize("name", READINGS)
def test_each_setting_is_described(name: str) -> None:
    kind: type[Reading] = READINGS[name]
    assert kind.title and (kind.__doc__ or "").strip()
    assert all(field.description for field in kind.model_fields.values())
    assert set(kind.exact_at) <= set(kind.model_fields)
