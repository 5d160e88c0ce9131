"""A row of a batch is what it is alone: logits, slots and bytes, beside rows of other lengths and with padded turns."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.table.packed_table import PackedTable
from kvlab.core.errors import UserError
from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS
from kvlab.core.stores import STORES
from kvlab.models.load import prepare
from tests.conformance.variants import Variant, every_variant
from tests.families import tiny_model

LENGTHS, TURN, STEPS = (60, 60, 41), (9, 5, 9), 40
AFTER_TURN = 12  # decode steps behind a turn; the first ones pack a group of the coarsest store
PACKING = [name for name, store in STORES.items() if store.packs]
# Heads of unlike length, whose tables differ between rows; slots per head, cut at every step, merged, and all.
METHODS = [("kvzip", 0.25), ("exactmerge2", 0.3), ("adakv", 0.5), ("snapkv", 50), ("h2o", 0.5), ("full", 1.0)]
SHORT = {
    "quest": "quest/page=4/least=1/dense_layers=0",
    "rocketkv": "rocketkv/page=4",
    "pqcache": "pqcache/bits=3/recent=8",
    "shadowkv": "shadowkv/chunk=4/recent=8",
    "retroinfer": "retroinfer/cluster=4/recent=8",
}


@cache
def model() -> PreTrainedModel:
    """In double precision, so that rounding hardly decides about a code, a centroid or a page."""
    return prepare(tiny_model("llama", num_hidden_layers=2).double())


def tokens(row: int, count: int, seed: int) -> Tensor:
    return torch.randint(3, 97, (count,), generator=torch.Generator().manual_seed(100 * seed + row))


def padded(rows: list[int], lengths: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """(ids, mask) of as many tokens as each of `rows` has, padded in front."""
    longest = max(lengths[row] for row in rows)
    ids, mask = torch.zeros(2, len(rows), longest, dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, longest - lengths[row] :] = tokens(row, lengths[row], seed)
        mask[place, longest - lengths[row] :] = 1
    return ids, mask


@torch.inference_mode()
def talk(compressed: CompressedCache, rows: list[int], turn: tuple[int, ...] = TURN, steps: int = STEPS) -> Tensor:
    """Logits (rows, passes, vocabulary) behind a prompt, decode steps, a turn and decode steps again."""
    every = (1,) * len(LENGTHS)
    passes = [LENGTHS, *[every] * steps, turn, *[every] * min(steps, AFTER_TURN)]
    mask, found = torch.zeros(len(rows), 0, dtype=torch.int64), []
    for seed, lengths in enumerate(passes):
        if not any(lengths[row] for row in rows):  # a row alone does not have this turn
            found.append(found[-1])
            continue
        ids, new = padded(rows, lengths, seed)
        mask = torch.cat([mask, new], 1)
        position = (mask.cumsum(-1) - 1)[:, -ids.shape[1] :].clamp_min(0)
        given = {"attention_mask": mask, "position_ids": position, "past_key_values": compressed}
        found.append(model()(ids, **given).logits[:, -1])
    return torch.stack(found, 1)


def apart(method: str, budget: float, **settings: Any) -> tuple[float, CompressedCache, list[CompressedCache]]:
    """(largest difference of a logit, the cache of the batch, those of its rows alone)."""
    make = partial(make_cache, model(), method, budget, **settings)
    together, rows = make(), [make() for _ in LENGTHS]
    both = talk(together, list(range(len(LENGTHS))))
    alone = torch.cat([talk(own, [row]) for row, own in enumerate(rows)])
    return float((both - alone).abs().max()), together, rows


@pytest.mark.parametrize(
    ("method", "budget", "store"),
    [(*METHODS[at % len(METHODS)], store) for at, store in enumerate(PACKING)]
    + [("kvzip", 0.25, store) for store in ("int8", "turbo4", "kivi4", "gear4")],
)
def test_a_packed_row_is_packed_as_alone(method: str, budget: float, store: str) -> None:
    difference, together, rows = apart(method, budget, store=store)
    assert difference < 1e-4
    assert together.memory().live_bytes == sum(own.memory().live_bytes for own in rows)
    if method in ("kvzip", "full") and STORES[store].gathered < STEPS:
        tables = [table for layer in together.compressed_layers() for table in layer.tables]
        assert any(isinstance(table, PackedTable) and table.used for table in tables)


@pytest.mark.parametrize(
    "read", [SHORT.get(name, name) for name in SPARSE_ATTENTIONS if name not in ("vattention", "magicpig")]
)
@pytest.mark.parametrize(("method", "budget"), [("kvzip", 0.3), ("full", 1.0), ("snapkv", 0.5)])
def test_a_row_reads_what_it_reads_alone(method: str, budget: float, read: str) -> None:
    difference, _, _ = apart(method, budget, read=read)
    assert difference < 1e-4


@pytest.mark.parametrize(
    ("method", "settings"), [("kvzip", {"store": "int8"}), ("gvote", {}), ("h2o", {"read": "pqcache"})]
)
def test_a_row_reports_its_own_slots_and_bytes(method: str, settings: dict[str, str]) -> None:
    _, together, rows = apart(method, 0.4, **settings)
    whole, by_row = together.memory(), together.memory_by_row()
    for own, alone in zip(by_row, rows, strict=True):
        assert own.live_slots == pytest.approx(alone.memory().live_slots)
        if "read" not in settings:  # an index has room for the longest row
            assert own.live_bytes == alone.memory().live_bytes == own.bytes_read
    assert sum(own.live_bytes for own in by_row) == pytest.approx(whole.live_bytes, abs=len(by_row))
    assert sum(own.allocated_bytes for own in by_row) == pytest.approx(whole.allocated_bytes, abs=len(by_row))
    assert sum(own.bytes_read for own in by_row) == pytest.approx(whole.bytes_read, abs=6 * len(by_row))


@pytest.mark.parametrize(
    "variant", [variant for variant in every_variant() if variant.changed.keys() <= {"preset"}], ids=str
)
def test_padding_of_a_later_turn_is_no_query(variant: Variant) -> None:
    """No average ages by it, and no sum holds its attention."""
    turn, steps = (9, 2, 4), 5  # one token alone would be a decode step, which sparse attention reads otherwise
    together, *rows = (make_cache(model(), variant.method, 0.4, **variant.settings) for _ in range(4))
    both = talk(together, [0, 1, 2], turn, steps)
    alone = torch.cat([talk(own, [row], turn, steps) for row, own in enumerate(rows)])
    assert (both - alone).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("snapkv", {"preset": "decode", "buffer": 8}),
        ("rkv", {"buffer": 8}),
        ("rkv", {"buffer": 8, "store": "int8"}),
        ("triattention", {"buffer": 8, "queries": "untrained"}),
        ("lazyeviction", {"buffer": 8}),
        ("scissorhands", {"preset": "paper", "buffer": 8}),
        ("asymkv", {"preset": "code", "buffer": 8}),
        ("kvslimmer", {"preset": "code", "buffer": 8}),
        ("keepkv", {"compress_every": 6}),
    ],
)
@pytest.mark.parametrize("turn", [(9, 0, 4), (0, 0, 7)])
def test_a_row_without_a_token_in_a_turn_is_as_if_it_had_none(
    method: str, settings: dict[str, Any], turn: tuple[int, ...]
) -> None:
    """Tokens that wait for a decision go on waiting, so that later decisions of the rows come at different steps."""
    steps = 11
    together, *rows = (make_cache(model(), method, 0.4, **settings) for _ in range(4))
    both = talk(together, [0, 1, 2], turn, steps)
    alone = torch.cat([talk(own, [row], turn, steps) for row, own in enumerate(rows)])
    difference = (both - alone).abs()
    difference[[not count for count in turn], steps + 1] = 0  # no query, no logits
    assert difference.max() < 1e-3
    assert together.memory().live_bytes == sum(own.memory().live_bytes for own in rows)


def test_a_decode_step_without_a_token_in_a_row_is_refused() -> None:
    compressed = make_cache(model(), "h2o", 0.4)
    ids, mask = padded([0, 1], (12, 12), 0)
    model()(ids, attention_mask=mask, past_key_values=compressed)
    more = torch.cat([mask, torch.tensor([[1], [0]])], 1)
    with pytest.raises(UserError, match="Row 1 of this pass of one token is padding"):
        model()(ids[:, :1], attention_mask=more, past_key_values=compressed)


@pytest.mark.parametrize("read", [SHORT.get(name, name) for name in SPARSE_ATTENTIONS])
@pytest.mark.parametrize("tokens_of_row", [0, 1])
def test_a_row_that_a_turn_gives_too_little_for_sparse_attention_is_refused(read: str, tokens_of_row: int) -> None:
    """The pass reads everything and builds the index anew, which the row alone would not do."""
    with pytest.raises(UserError, match=f"Row 1 of this pass has {tokens_of_row} of its 9 tokens"):
        talk(make_cache(model(), "snapkv", 0.5, read=read), [0, 1, 2], (9, tokens_of_row, 4), 3)
