"""Decisions that compiled kernels take in place on a CPU, against the pipeline's, which makes plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.core.cache import CompressedCache, factory, make_cache
from kvlab.core.cache.kernels import cpu
from kvlab.core.cache.kernels.cpu import numba_kernels
from kvlab.core.cache.layers import decisions, dispatch
from kvlab.core.cache.table.slot_table import SlotTable
from kvlab.core.contract.in_place import KINDS
from kvlab.core.contract.inplace_work import Work
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.plan import Plan
from kvlab.core.contract.view import KEY_LENGTH, Slots, View
from kvlab.core.methods.scorers.attention.ema import EMA
from kvlab.models.load import prepare
from tests.cache.kernels import DEVICE, kernel_module
from tests.cache.tables import same_tables
from tests.cache.test_triton_inplace import kernel_as_it_was  # noqa: F401  # a fixture
from tests.families import tiny_model

CASES: list[tuple[str, dict]] = [
    ("keepkv", {"threshold": 0.3}),
    ("keepkv", {"rule": "votes", "threshold": -1.0}),
    ("keepkv", {"alpha": 0.99}),  # more queries count than a byte holds
    ("d2o", {}),
    ("d2o", {"smoothing": 1.0, "sinks": 0}),
    ("compose", {"score": "keepkv", "settle": "keepkv", "allocate": "adakv"}),
    ("zsmerge", {}),
    ("zsmerge", {"combine_score": "sum", "residual": 3, "sinks": 0}),
    ("h2o", {}),
    ("cam", {"merge": 4}),
    ("cam", {"merge": 3, "draw": "expected"}),
    ("pyramid-pool", {}),
    ("pyramid-pool", {"beta": 1.0, "sinks": 0, "recent": 0.8}),
    ("less", {"weights": "untrained"}),
]
MODELS = {
    "grouped queries": {},
    "a head for each query": {"num_key_value_heads": 4},
    "lengths of keys held": {"head_dim": 64},
}
# Each case with grouped queries, and with one of the other shapes by turns.
OTHERS = list(MODELS)[1:]
CELLS = [
    (*case, shape) for place, case in enumerate(CASES) for shape in ("grouped queries", OTHERS[place % len(OTHERS)])
]
PROMPT, STEPS = 40, 8


@cache
def lab_model(shape: str, dtype: torch.dtype) -> PreTrainedModel:
    return prepare(tiny_model("llama", dtype, num_hidden_layers=2, **MODELS[shape]))


def _module() -> ModuleType:
    pytest.importorskip("numba", reason="the package numba is not installed: pip install kvlab[cpu]")
    module = numba_kernels()
    assert module is not None
    return module


def _decoded(model: torch.nn.Module, cache: CompressedCache) -> Tensor:
    """Logits of a padded batch: a prompt, decode steps, a second turn, decode steps."""
    mask, seen = torch.ones(2, PROMPT, dtype=torch.int64), []
    mask[1, :7] = 0
    ids = torch.arange(2 * PROMPT).view(2, -1) % 90 + 3
    with torch.inference_mode():
        model(ids, attention_mask=mask, past_key_values=cache)
        for step in range(STEPS):
            width = 3 if step == STEPS // 2 else 1
            token = (torch.arange(2 * width).view(2, -1) * 7 + 3 * step) % 90 + 3
            mask = torch.cat([mask, mask.new_ones(2, width)], 1)
            seen.append(model(token, attention_mask=mask, past_key_values=cache).logits[:, -1])
    return torch.stack(seen)


@pytest.mark.parametrize(("method", "options", "shape"), CELLS)
def test_equals_the_pipeline(method: str, options: dict, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, works = lab_model(shape, torch.float32), []

    def watched(work: Work) -> None:
        works.append(work)
        plain(work)

    module, caches, logits = _module(), [], []
    plain = module.decide
    monkeypatch.setattr(module, "decide", watched)
    for kernel in (None, watched):
        monkeypatch.setattr(decisions, "decision_kernel", lambda device, kernel=kernel: kernel)
        caches.append(make_cache(model, method, 0.4, **options))
        logits.append(_decoded(model, caches[-1]))
    layers = len(caches[0].compressed_layers())
    assert len(works) >= layers * (STEPS - 3), "hardly a decision was taken in place"
    assert len({id(work) for work in works}) <= len(works) / 2, "a table that stays the same was described anew"
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    same_tables(caches[1], caches[0], 1e-4)


@pytest.mark.parametrize(("method", "options"), CASES)
def test_other_types_are_the_pipelines(method: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Types other than float32 are left to the pipeline, for every shape."""
    module, works = _module(), []
    watched = works.append
    monkeypatch.setattr(module, "decide", watched)
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: watched)
    model = lab_model("grouped queries", torch.bfloat16)
    cache = make_cache(model, method, 0.4, **options)
    assert torch.isfinite(_decoded(model, cache)).all()
    assert not works
    assert all((layer.evicted_votes > 0).any() or layer.slots.votes.max() > 1 for layer in cache.compressed_layers())


@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize(("method", "options"), [CASES[0], CASES[3], CASES[5]])
def test_a_new_token_goes_where_it_goes_when_somebody_looks_for_room(
    method: str, options: dict, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot that a decision has just freed is the one found by looking at all, and nothing else differs.

    Where slots hold the lengths of their keys, of which 64 numbers are enough, no more differs than rounding.
    """
    model, found, told = prepare(tiny_model("llama", head_dim=head_dim, num_hidden_layers=2)), [], []
    plain = SlotTable.note_freed
    for known in (True, False):

        def freed(table: SlotTable, slots: Tensor, only: bool, known: bool = known) -> None:
            told.append(only)
            if known:
                plain(table, slots, only)

        monkeypatch.setattr(SlotTable, "note_freed", freed)
        cache = make_cache(model, method, 0.4, **options)
        logits = _decoded(model, cache)
        tables = [table for layer in cache.compressed_layers() for table in layer.tables]
        found.append([logits, *(column for table in tables for column in _columns(table))])
    assert len(told) >= 2 * 2 * (STEPS - 3), "hardly a decision said what it freed"
    holds = {KEY_LENGTH in table.slots.extra for table in tables}
    assert holds == {head_dim == 64}
    if head_dim == 64:
        torch.testing.assert_close(*found)  # whole numbers are equal; lengths of keys are not added up in one order
    else:
        assert all(map(torch.equal, *found))


def _columns(table: SlotTable) -> list[Tensor]:
    free = table.slots.position < 0
    states = [states.masked_fill(free[..., None], 0) for states in (table.slots.keys, table.slots.values)]
    return states + [column.masked_fill(free, 0) for column in table.slots.own().values()]


@pytest.mark.parametrize(("method", "right"), [("d2o", 0.7), ("keepkv", 0.3)])
def test_the_slot_that_may_leave_next_is_guessed_and_a_wrong_guess_changes_nothing(
    method: str, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its products, without them and with somebody else's slot for a guess the tables are the same."""
    module, caches, guessed = _module(), [], []
    model, plain = prepare(tiny_model("llama", head_dim=64, num_hidden_layers=2)), module.decide
    for how in ("as it is", "no products", "another slot"):

        def decide(work: Work, how: str = how) -> None:
            guess = work.guess.clone()
            if how == "no products":
                work.products = None
            brought = work.products is not None
            plain(work)
            if how == "another slot":
                begins = work.guess - work.guess % work.position.shape[2]
                work.guess.sub_(begins).add_(1).remainder_(work.position.shape[2]).add_(begins)
            if how == "as it is" and brought:
                assert work.left is not None
                guessed.append((guess == work.left).float().mean())

        monkeypatch.setattr(module, "decide", decide)
        monkeypatch.setattr(decisions, "decision_kernel", lambda device, decide=decide: decide)
        caches.append(make_cache(model, method, 0.4))
        _decoded(model, caches[-1])
    assert len(guessed) > STEPS and torch.stack(guessed).mean() > right
    for other in caches[1:]:
        same_tables(other, caches[0], 1e-5)


def test_what_decode_steps_need_is_compiled_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = prepare(tiny_model("llama")), []
    monkeypatch.setattr(factory, "precompile", lambda pipeline, dtype: asked.append(pipeline.in_place.kind))
    for method, options in CASES:
        make_cache(model, method, 0.4, **options)
    assert len(asked) == len(CASES) and set(asked) == set(KINDS)
    for method, options in (("pyramid-pool", {"pooling": "mean"}), ("kvmerger", {}), ("full", {})):
        make_cache(model, method, 0.4, **options)
    assert len(asked) == len(CASES)


def test_what_cannot_be_compiled_is_told_once_and_the_pipeline_decides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = _module()

    def broken(work: Work) -> None:
        raise RuntimeError("this CPU is unknown\nto LLVM")

    monkeypatch.setattr(module, "decide", broken)
    numba_kernels.cache_clear()
    try:
        assert cpu.cpu_kernel() is None and cpu.cpu_kernel() is None
        assert caplog.text.count("this CPU is unknown") == 1 and "KVLAB_KERNELS=off" in caplog.text
        assert "to LLVM" not in caplog.text
    finally:
        numba_kernels.cache_clear()


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which the package numba is not installed."""
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    for cached in (numba_kernels, cpu._compile_kernel, dispatch.decision_kernel):
        cached.cache_clear()
    yield
    for cached in (numba_kernels, cpu._compile_kernel, dispatch.decision_kernel):
        cached.cache_clear()


@pytest.mark.usefixtures("no_numba")
@pytest.mark.parametrize(("method", "options"), [CASES[0], CASES[3], CASES[5], ("h2o", {})])
def test_without_numba_the_pipeline_decides(method: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own choice of a kernel is none, without a warning, and the result is the pipeline's."""
    plans, plain = [], Pipeline.plan

    def plan(pipeline: Pipeline, view: View) -> Plan:
        plans.append(view.phase)
        return plain(pipeline, view)

    monkeypatch.setattr(Pipeline, "plan", plan)
    model, caches, logits, planned = prepare(tiny_model("llama")), [], [], []
    assert cpu.cpu_kernel() is None and dispatch.decision_kernel(torch.device("cpu")) is None
    for choose in (dispatch.decision_kernel, lambda device: None):
        monkeypatch.setattr(decisions, "decision_kernel", choose)
        caches.append(make_cache(model, method, 0.4, **options))
        logits.append(_decoded(model, caches[-1]))
        planned.append(plans.count("decode"))
        plans.clear()
    assert planned[0] == planned[1] >= len(caches[0].compressed_layers()) * (STEPS - 3)
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=0)
    same_tables(caches[1], caches[0], 0)


@pytest.mark.parametrize(
    ("method", "added", "odd"),
    [("d2o", 0.0, False), ("d2o", -100.0, True), ("keepkv", 0.0, True)],  # KeepKV's scores are logs of attention
)
@pytest.mark.parametrize("who", ["pipeline", "compiled", "kernel"])
def test_a_score_that_is_no_number_counts_as_0_whoever_decides(
    who: str, method: str, added: float, odd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second token has such a score; the others lie above 0, so that one of the first leaves, or below."""
    kernel = kernel_module("kvlab.core.cache.kernels.triton_inplace").decide if who == "kernel" else None
    decide = _module().decide if who == "compiled" else kernel
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: decide)
    model, ids = prepare(tiny_model("llama")).to(DEVICE), torch.arange(PROMPT, device=DEVICE)[None] % 90 + 3
    cache = make_cache(model, method, 0.8)
    with torch.inference_mode():
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
        tables = [table for layer in cache.compressed_layers() for table in layer.tables]
        before = [table.slots.position.clone() for table in tables]
        for table, position in zip(tables, before, strict=True):
            score = table.slots.extra[EMA] if method == "keepkv" else table.slots.score
            score.add_(added).masked_fill_(position % 2 == 0, torch.nan)
        model(ids[:, :1], past_key_values=cache)
    for table, position in zip(tables, before, strict=True):
        kept = (position[..., None] == table.slots.position[..., None, :]).any(-1)
        gone = position[(position >= 0) & ~kept]
        assert len(gone) and (gone % 2 == odd).all()


@pytest.mark.parametrize("method", ["keepkv", "d2o"])
def test_whoever_watches_sees_the_same(method: str) -> None:
    """A recorder needs plans, so the pipeline decides: the text goes on as without one."""

    class Watching:
        full = True
        plans = 0

        def attended(self, *shown: object) -> None: ...

        def compressed(self, *told: object) -> None:
            self.plans += 1

    model, logits, watching = prepare(tiny_model("llama")), [], Watching()
    for observer in (None, watching):
        cache = make_cache(model, method, 0.4)
        cache.settings.observer = observer
        logits.append(_decoded(model, cache))
    assert watching.plans >= 3 * STEPS
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["keepkv", "d2o", "h2o"])
def test_whoever_counts_is_told_as_much(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that counts only hears of each head's slots that left and merged, by plans or without.

    Without it also hears what the tables hold then.
    """

    class Counting:
        full = False

        def __init__(self) -> None:
            self.cache: CompressedCache | None = None
            self.heard: list[Tensor] = []
            self.short = 0

        def attended(self, *shown: object) -> None: ...

        def compressed(self, layer_idx: int, view: View, plan: Plan, before: Slots, after: Slots) -> None:
            merged = plan.edges.active.sum(-1) if plan.edges is not None else torch.zeros(plan.keep.shape[:2])
            self.heard.append(torch.stack([(before.valid > plan.keep).sum(-1), merged]).float())

        def counted(self, layer_idx: int, told: np.ndarray) -> None:
            assert self.cache is not None
            self.short += 1
            merged, live, most = torch.from_numpy(told)
            self.heard.append(torch.stack([torch.ones_like(merged), merged]))
            layer = {own.layer_idx: own for own in self.cache.compressed_layers()}[layer_idx]
            assert torch.equal(live, layer.per_head(Slots.live).float())
            assert torch.equal(most, layer.per_head(Slots.most_votes).float())

    _module()  # without numba the pipeline decides, and nothing is counted
    model, counting = prepare(tiny_model("llama")), [Counting(), Counting()]
    for observer in counting:
        cache = make_cache(model, method, 0.4, **({"threshold": 0.3} if method == "keepkv" else {}))
        cache.settings.observer, observer.cache = observer, cache
        _decoded(model, cache)
        monkeypatch.setattr(decisions, "decision_kernel", lambda device: None)
    assert counting[0].short >= 3 * (STEPS - 3) and not counting[1].short
    assert len(counting[0].heard) == len(counting[1].heard)
    assert all(map(torch.equal, counting[0].heard, counting[1].heard))
    assert method == "h2o" or any(heard[1].any() and not heard[1].all() for heard in counting[0].heard[6:])


def test_a_row_alone_gets_what_it_gets_beside_others() -> None:
    """Rows that were kept, repeated or put in another order have tables of their own from then on."""
    model = prepare(tiny_model("llama"))
    ids, after = torch.arange(3 * PROMPT).view(3, -1) % 90 + 3, torch.arange(12).view(3, -1) % 90 + 3
    order = torch.tensor([2, 0])
    for method in ("keepkv", "d2o"):
        found = []
        for early in (True, False):
            cache = make_cache(model, method, 0.4)
            with torch.inference_mode():
                model(ids[order] if early else ids, past_key_values=cache)
                for step in range(4):
                    if step == 2 and not early:
                        cache.batch_select_indices(order)
                    token = after[order] if early or step >= 2 else after
                    found.append(model(token[:, step : step + 1], past_key_values=cache).logits)
        torch.testing.assert_close(found[6], found[2], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[7], found[3], rtol=1e-4, atol=1e-4)


def test_what_is_kept_from_an_inference_serves_another_step() -> None:
    model, ids = prepare(tiny_model("llama")), torch.arange(PROMPT)[None] % 90 + 3
    for method in ("keepkv", "d2o"):
        cache = make_cache(model, method, 0.4)
        with torch.no_grad():
            model(ids, past_key_values=cache)
        for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
            with mode():
                model(ids[:, :1], past_key_values=cache)


def test_heads_of_unlike_budgets_in_a_table_keep_their_budgets() -> None:
    """A table is as long as its longest head; what the others hold below that is no reason to decide again."""
    model, ids = prepare(tiny_model("llama")), torch.stack([torch.arange(200) % 90, torch.arange(200) ** 2 % 83]) + 3
    cache = make_cache(model, "compose", 0.4, score="keepkv", settle="keepkv", allocate="adakv")
    with torch.inference_mode():
        model(ids, past_key_values=cache)
        for step in range(5):
            model(ids[:, step : step + 1], past_key_values=cache)
    unlike = [bucket.quota.smallest < bucket.quota.largest for layer in cache.layers for bucket in layer.buckets]
    assert any(unlike), "every table has heads of one length, so that nothing was asked"
    for layer in cache.compressed_layers():
        assert torch.equal(layer.per_head(Slots.live), layer.budget)
