"""Stores: packing loses nothing but what its code does, whose bytes are told, what is decoded when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.table.packed_table import PackedTable
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.choice import MethodChoice
from kvlab.core.contract.slot_columns import FREE, Columns
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.core.stores import STORES, Store, quantized_states, store_of
from kvlab.core.stores.code import Code, Learning
from kvlab.core.stores.kivi import PerToken
from kvlab.core.stores.store import keys_as_held
from kvlab.models.load import prepare
from tests.conformance.variants import SHORT
from tests.families import tiny_model

PACKING = [name for name, store in STORES.items() if store.packs and not name.startswith("short-")]
PROMPT, SECOND, STEPS, PADS = 150, 40, 50, 30
A_LOT = 12  # steps enough, with the second turn, for lots of 16 and 32 to be packed after the prompt


@lru_cache(maxsize=1)
def lab_model() -> PreTrainedModel:
    return prepare(tiny_model("llama", num_hidden_layers=2))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def learned(code: Code, states: Tensor, real: Tensor) -> Code:
    """A code that knows its slots, if it wants to."""
    return replace(code, **code.learn(states, real, None)) if isinstance(code, Learning) else code


# codes


@dataclass(frozen=True)
class Exact(Code):
    """Loses nothing, so whatever differs from a native table is packing's fault."""

    group: int = 1
    shared: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()

    def encode(self, states: Tensor, valid: Tensor) -> dict[str, Tensor]:
        whole = {"codes": states.masked_fill(~valid[..., None], 7.0).clone()}
        return whole | {name: states[:, :, :: self.group, :1].clone() for name in self.shared}

    def decode(self, coded: Mapping[str, Tensor], width: int) -> Tensor:
        return coded["codes"].float()


EXACT = {
    "exact": Store("", Exact(), Exact(), sinks=2, residual=5, lot=8),
    "exact-groups": Store("", Exact(16, ("first",)), Exact(), sinks=2, residual=5, lot=16),
}
for _name, _store in EXACT.items():
    STORES.add(_name, _store)


def conversation(
    method: str, store: str, budget: float = 0.3, steps: int = STEPS, **settings: object
) -> tuple[Tensor, CompressedCache]:
    """Logits behind a padded prompt, decode steps, a second turn and decode steps again."""
    ids = torch.randint(3, 97, (2, PROMPT + SECOND + steps), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, :PADS] = 0
    model, end, found = lab_model(), 0, []
    fitted = ("weights", "heads", "gates", "queries", "profile", "curves")
    own = {name: value for name, value in SHORT.get(method, {}).items() if name in fitted}
    cache = make_cache(model, make_method(method, store=store, **own, **settings), budget)
    with torch.inference_mode():
        for count in (PROMPT, *[1] * (steps // 2), SECOND, *[1] * (steps // 2)):
            begun, end = end, end + count
            position = (mask[:, :end].cumsum(-1) - 1)[:, begun:].clamp_min(0)
            given = {"attention_mask": mask[:, :end], "position_ids": position, "past_key_values": cache}
            found.append(model((ids * mask)[:, begun:end], **given).logits[:, -1])
    return torch.stack(found, 1), cache


@lru_cache(maxsize=1)
def natively(method: str) -> tuple[Tensor, CompressedCache]:
    return conversation(method, "native", steps=A_LOT)


EACH = [name for name in registered() if name != "duoattention"]  # it needs a profile


@pytest.mark.parametrize(("method", "store"), [(name, list(EXACT)[place % 2]) for place, name in enumerate(EACH)])
def test_packing_itself_changes_nothing(method: str, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With codes and log masses that lose nothing every method does what it does natively: evict, merge, thin out."""
    monkeypatch.setattr("kvlab.core.contract.slot_columns.LIGHT_MASS", torch.float32)
    native, plain = natively(method)
    held_by, cache = conversation(method, store, steps=A_LOT)
    assert any(isinstance(table, PackedTable) and table.used for table in cache.compressed_layers()[0].tables)
    assert (held_by - native).abs().max() < 1e-4
    for ours, theirs in zip(cache.compressed_layers(), plain.compressed_layers(), strict=True):
        assert (ours.slots.live() == theirs.slots.live()).all()


SOME = ("full", "snapkv", "adakv", "h2o", "keepkv", "cam")  # every second one in each store, by turns


@pytest.mark.parametrize(
    ("method", "store"),
    [(name, store) for at, store in enumerate(PACKING) for place, name in enumerate(SOME) if (at + place) % 2 == 0],
)
def test_bytes_are_what_the_tensors_take(method: str, store: str) -> None:
    _, cache = conversation(method, store, steps=A_LOT)
    for layer, told in zip(cache.compressed_layers(), cache.memory().layers, strict=True):
        allocated, live = 0, 0
        for table in layer.tables:
            assert isinstance(table, PackedTable) and table.used
            tensors = [*table.slots.varying_columns().values(), *table.native.values(), *table.head_state.values()]
            tensors += [tensor for coded in table.coded.values() for tensor in coded.values()]
            own_of_heads = [tensor for own in table.learned.values() for tensor in own.values()]
            own_of_heads += [] if table.mean_key is None else [table.mean_key]
            mean = sum(2 * tensor[0, 0].numel() for tensor in own_of_heads)  # 16 bits each
            allocated += sum(tensor.untyped_storage().nbytes() for tensor in tensors)
            valid, room = table.valid(), table.room
            allocated += mean * valid.shape[0] * valid.shape[1]
            for row in range(valid.shape[0]):
                for head in range(valid.shape[1]):
                    own = valid[row, head]
                    live += mean * bool(own[:room].any())
                    columns = table.slots.varying_columns().values()
                    live += int(own.sum()) * sum(column[0, 0, 0].nbytes for column in columns)
                    live += int(own[room:].sum()) * sum(native[0, 0, 0].nbytes for native in table.native.values())
                    for side, code in table.codes.items():
                        for name, tensor in table.coded[side].items():
                            size = code.group if name in code.shared else 1
                            groups = [own[at : at + size].any() for at in range(0, room, size)]
                            live += sum(map(int, groups)) * tensor[0, 0, 0].nbytes if groups else 0
            live += sum(tensor.nbytes for tensor in table.head_state.values())
        assert told.allocated_bytes == allocated
        assert told.live_bytes == live <= allocated


def test_a_packed_cache_takes_a_share_of_a_native_one() -> None:
    """KIVI's 4 bits take 5 of 32 with scales; slots that stay native, holes and metadata come on top."""
    native, packed_cache = (conversation("full", store)[1].memory() for store in ("native", "kivi4"))
    assert packed_cache.live_bytes < 0.45 * native.live_bytes
    assert packed_cache.allocated_bytes < 0.6 * native.allocated_bytes


@pytest.mark.parametrize("method", ["full", "snapkv", "h2o", "zsmerge"])
def test_a_decode_step_never_decodes_more_than_a_block(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and eviction decode blocks; merging looks at the keys of one layer at a time."""
    most, decode = [0], PerToken.decode

    def watched(self: PerToken, coded: Mapping[str, Tensor], width: int) -> Tensor:
        states = decode(self, coded, width)
        most.append(states.shape[2])
        return states

    monkeypatch.setattr(PerToken, "decode", watched)
    monkeypatch.setattr(quantized_states, "BLOCK", 32)
    monkeypatch.setattr("kvlab.core.attention.tiles.TILE", {"cpu": (8, 64)})
    monkeypatch.setattr("kvlab.core.attention.tiles.FEWEST_COLUMNS", 32)
    _, cache = conversation(method, "kivi4", 0.6)
    start = len(most)
    with torch.inference_mode():
        ids, mask = torch.full((2, 1), 9), torch.ones(2, PROMPT + SECOND + STEPS + 1, dtype=torch.int64)
        lab_model()(ids, attention_mask=mask, past_key_values=cache)
    held_slots = max(table.used for layer in cache.compressed_layers() for table in layer.tables)
    seen = most[start:]
    assert seen and held_slots > 64
    assert max(seen) <= (held_slots + 64 if method == "zsmerge" else 64)


def test_the_first_slots_and_the_newest_stay_exact() -> None:
    _, native = conversation("full", "native", 1.0)
    _, cache = conversation("full", "kivi2", 1.0)
    for ours, theirs in zip(cache.compressed_layers()[:1], native.compressed_layers()[:1], strict=True):
        last = ours.tokens_seen[:, None] - 1
        for side in ("keys", "values"):
            off = []
            for slots in (ours.slots, theirs.slots):
                order = slots.position.masked_fill(~slots.valid, 2**14).argsort(-1)[..., : int(last.max()) + 1]
                off.append(getattr(slots, side).gather(2, order[..., None].expand(*order.shape, 16)))
            error = (off[0] - off[1])[0].abs().amax((0, 2))  # the row without padding
            assert error[:4].max() == 0 and error[-16:].max() == 0
            assert error[4:-60].min() > 0


@pytest.mark.parametrize("name", ["turbo3", "kivi4", "centred5", "exact-groups", "low_rank", "think"])
def test_what_a_store_will_give_back_is_known_before(name: str) -> None:
    """`keys_as_held` of an unpacked table: what it gives back once what stays is packed, heads of any length."""
    store = replace(STORES[name], sinks=2, residual=3)
    keys, values = draw(1, 2, 90, 32, seed=1), draw(1, 2, 90, 32, seed=2)
    position = torch.randperm(90, generator=torch.Generator().manual_seed(3)).expand(1, 2, -1).int()
    slots = Columns(False, 0.0).fresh(keys, values, position, {})
    slots.valid = draw(1, 2, 90, seed=4) > torch.tensor([0.0, 1.0])[:, None]
    slots.position = position.masked_fill(~slots.valid, FREE)
    live, order = slots.live(), slots.in_text()
    expected = keys_as_held(store, keys, order, live)
    flat = live.flatten().tolist()
    table = PackedTable(SlotTable(slots, Columns(False, 0.0)).compacted(order, 0, flat), store)
    given, held_at = quantized_states.dense_states(table.states()[0]), table.slots.position
    for head in range(2):
        assert flat[head] > 8
        for place in table.valid()[0, head].nonzero()[:, 0].tolist():
            own = (position[0, head] == held_at[0, head, place]).nonzero().item()
            torch.testing.assert_close(given[0, head, place], expected[0, head, own], rtol=1e-5, atol=1e-6)
        stays = slots.valid[0, head]
        assert (expected[0, head, ~stays] == keys[0, head, ~stays]).all()


def test_centred_keys_cost_the_mean_once_and_lose_less() -> None:
    """Keys with a common part: the error is that of keys without it, for one float16 vector per head."""
    mean, keys, order = 5 * draw(1, 2, 1, 32, seed=7), draw(1, 2, 90, 32, seed=8), torch.arange(90).expand(1, 2, -1)
    live = torch.full((1, 2), 90)

    def error(store: str, added: Tensor) -> float:
        given = keys_as_held(STORES[store], keys + added, order, live)
        return float((given - keys - added).square().sum(-1).mean())

    nothing = torch.zeros(1)
    assert error("centred4", mean) == pytest.approx(error("lean4", nothing), rel=0.1)
    assert error("lean4", mean) > 10 * error("centred4", mean)
    values, position = draw(1, 2, 90, 32, seed=9), order.int()
    slots = Columns(False, 0.0).fresh(keys + mean, values, position, {})
    tables = [
        PackedTable(SlotTable(slots, Columns(False, 0.0)).compacted(order, 0, [90, 90]), STORES[store])
        for store in ("lean4", "centred4")
    ]
    lean, centred = (table.part_bytes()["scales"] for table in tables)
    assert centred - lean == 2 * 32 * 2


def test_generate_and_beams_run_on_packed_slots() -> None:
    model = lab_model()
    ids = torch.randint(3, 97, (2, 90), generator=torch.Generator().manual_seed(8))
    for beams in (1, 3):
        made = [
            model.generate(
                ids, past_key_values=make_cache(model, make_method("h2o", store=store), 0.5), max_new_tokens=20,
                num_beams=beams, do_sample=False, pad_token_id=0,
            )
            for store in ("native", "exact-groups")
        ]  # fmt: skip
        assert torch.equal(*made)


def test_an_unknown_store_is_named() -> None:
    with pytest.raises(UserError, match=r"no store called 'kivi5' .do you mean kivi4"):
        make_method("snapkv", store="kivi5")


def test_a_store_of_ones_own_is_one_line() -> None:
    keys_only = replace(STORES["kivi2"], values=STORES["turbo4"].values)
    STORES.add("kivi2-turbo4", keys_only)
    logits, _ = conversation("snapkv", "kivi2-turbo4")
    assert torch.isfinite(logits).all()


def test_every_token_in_a_store_is_a_method_and_not_the_reference() -> None:
    choice = MethodChoice(method="full", budget=1.0, hyper_parameters={"store": "kivi4"})
    assert (choice.method, choice.hyper_parameters) == ("packed", {"store": "kivi4"})
    assert MethodChoice(method="full", budget=1.0, hyper_parameters={"store": "native"}).method == "full"


def test_the_settings_of_a_run_name_a_store_only_where_there_is_one() -> None:
    assert "store" not in make_method("h2o").model_dump()
    assert make_method("h2o", store="fp8").model_dump()["store"] == "fp8"
    assert make_method("compose", settle="keepkv", store="fp8").store == "fp8"


def test_a_store_takes_settings_behind_its_name() -> None:
    changed = store_of("kivi4/group=64/residual=128/sinks=0")
    assert (changed.keys.group, changed.lot, changed.residual, changed.sinks) == (64, 64, 128, 0)
    assert changed.values == store_of("kivi4").values and store_of("kivi4").residual == 16
    for wrong, why in (
        ("kivi4/groups=64", "is not a setting of a store"), ("kivi4/group=1", "is not a setting"),
        ("kivi4/residual=", "is not a setting"),
        ("turbo4/group=64", "has no groups"), ("native/residual=8", "does not quantize"), ("kivi9/group=8", "no store"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=why):
            make_method("snapkv", store=wrong)
    _, cache = conversation("snapkv", "kivi4/group=4/residual=2/sinks=1")
    table = cache.compressed_layers()[0].tables[0]
    assert isinstance(table, PackedTable) and table.used


@pytest.mark.parametrize("store", ["auto", "adaptive"])
@pytest.mark.parametrize("method", ["full", "gvote"])
def test_a_method_without_a_budget_has_no_share_to_choose_a_store_by(method: str, store: str) -> None:
    """However the cache is made: for a comparison and a prefix the budget is left out before."""
    model = lab_model()
    assert make_cache(model, method, "12%B", store=store).settings.store == STORES["native"]
    assert make_cache(model, method, 1.0, store=store).settings.store == STORES["native"]
    assert make_cache(model, "snapkv", "12%B", store=store).settings.store.packs


@pytest.mark.parametrize("method", ["full", "gvote"])
@pytest.mark.parametrize("store", ["adaptive", "auto"])
def test_a_store_that_goes_by_the_budget_says_that_there_is_none(method: str, store: str) -> None:
    (note,) = make_method(method, store=store).notes(100, 400)
    assert f"store={store}" in note and "natively" in note
    assert not make_method(method, store="int8").notes(100, 400)
    assert not make_method("h2o", store=store).notes(100, 400)
