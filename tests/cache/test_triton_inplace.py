"""The decision kernel against the pipeline, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from kvlab.core.attention import kernels
from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.cache.layers import decisions, dispatch
from kvlab.core.contract.in_place import EVICT, NEAREST, SPREAD, Work
from kvlab.core.methods import make_method, registered
from kvlab.models.load import prepare
from tests.cache.compile_ahead import some_work
from tests.cache.kernels import DEVICE, kernel_module
from tests.cache.tables import same_tables
from tests.families import tiny_model

CASES: list[tuple[str, dict]] = [
    ("h2o", {}),
    ("zsmerge", {}),
    ("zsmerge", {"combine_score": "sum", "residual": 3, "sinks": 0}),
    ("keepkv", {"threshold": 0.3}),
    ("keepkv", {"rule": "votes", "threshold": -1.0}),
    ("d2o", {}),
    ("d2o", {"smoothing": 1.0, "sinks": 0}),
    ("cam", {"merge": 4}),
    ("cam", {"merge": 3, "draw": "expected"}),
]
PROMPT, STEPS = 40, 14


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    return kernel_module("kvlab.core.cache.triton_inplace")


@pytest.fixture(autouse=True)
def kernel_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dispatch, "_failed", False)
    dispatch.decision_kernel.cache_clear()
    yield
    dispatch.decision_kernel.cache_clear()


def _decoded(cache: CompressedCache, family: str = "llama") -> Tensor:
    """Logits of a padded batch: a prompt, decode steps, a second turn, decode steps."""
    model = prepare(tiny_model(family)).to(DEVICE)
    mask, seen = torch.ones(2, PROMPT, dtype=torch.int64, device=DEVICE), []
    mask[1, :7] = 0
    ids = torch.arange(2 * PROMPT, device=DEVICE).view(2, -1) % 90 + 3
    with torch.inference_mode():
        model(ids, attention_mask=mask, past_key_values=cache)
        for step in range(STEPS):
            width = 3 if step == STEPS // 2 else 1
            token = (torch.arange(2 * width, device=DEVICE).view(2, -1) * 7 + 3 * step) % 90 + 3
            mask = torch.cat([mask, mask.new_ones(2, width)], 1)
            seen.append(model(token, attention_mask=mask, past_key_values=cache).logits[:, -1])
    return torch.stack(seen)


@pytest.mark.parametrize(("method", "options"), CASES)
def test_equals_the_pipeline(kernel: ModuleType, method: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padded batch, a second turn, merges and evictions: the same logits and the same tables after every step."""
    model, works = prepare(tiny_model("llama")).to(DEVICE), []

    def watched(work: Work) -> None:
        works.append(work)
        kernel.decide(work)

    caches, logits = [], []
    for launch in (None, watched):
        monkeypatch.setattr(decisions, "decision_kernel", lambda device, launch=launch: launch)
        caches.append(make_cache(model, method, 0.4, **options))
        logits.append(_decoded(caches[-1]))
    layers = len(caches[0].compressed_layers())
    assert len(works) >= layers * (STEPS - 3), "hardly a decision went through the kernel"
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    same_tables(caches[1], caches[0])


def _filled(kind: int, dtype: torch.dtype) -> Work:
    """A full table of 300 slots a head, of which the lowest score that may go is not one of the first or the newest."""
    draw = torch.Generator().manual_seed(kind)
    work = some_work(kind, dtype, 24, torch.int16)
    shape = work.position.shape
    changes: dict[str, Tensor] = {
        "keys": torch.randn(work.keys.shape, generator=draw).to(dtype),
        "values": torch.randn(work.keys.shape, generator=draw).to(dtype),
        "position": torch.stack([torch.randperm(shape[2], generator=draw) for _ in range(shape[1])])[None].short(),
        "mass": torch.rand(shape, generator=draw),
        "tokens_seen": torch.full((1,), shape[2]),
        "recent": torch.full(shape[:2], 40),
        "sinks": torch.full(shape[:2], 4),
    }
    for name in ("score", "log_mass", "average"):
        if getattr(work, name) is not None:
            changes[name] = torch.randn(shape, generator=draw)
    for name, least in (("votes", 1), ("residual", 0)):
        if (column := getattr(work, name)) is not None:
            changes[name] = torch.randint(least, 2 + least, shape, generator=draw).to(column.dtype)
    return _on_device(replace(work, least=-1.0 if kind == NEAREST else work.least, **changes))


def _on_device(work: Work) -> Work:
    tensors = {f.name: getattr(work, f.name) for f in fields(work) if isinstance(getattr(work, f.name), Tensor)}
    return replace(work, **{name: tensor.clone().to(DEVICE) for name, tensor in tensors.items()})


def _as_decided(kernel: ModuleType, work: Work) -> dict[str, Tensor]:
    kernel.decide(work)
    found = {f.name: getattr(work, f.name) for f in fields(work)}
    return {name: tensor.float() for name, tensor in found.items() if isinstance(tensor, Tensor)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", range(5))
def test_halves_decide_as_their_numbers_do(kernel: ModuleType, kind: int, dtype: torch.dtype) -> None:
    """The same numbers held in float32 lead to the same slots, and to states that differ by rounding alone."""
    half = _filled(kind, dtype)
    whole = _on_device(replace(half, keys=half.keys.float(), values=half.values.float()))
    before = half.keys.clone(), half.values.clone()
    found, expected = _as_decided(kernel, half), _as_decided(kernel, whole)
    for name, tensor in found.items():
        close = 2 * torch.finfo(dtype).eps * 4 if name in ("keys", "values") else 1e-6
        torch.testing.assert_close(tensor, expected[name], rtol=close, atol=close, msg=name)
    assert (half.position < 0).sum(-1).eq(1).all()
    touched = [(old != new).any(-1).sum(-1).max() for old, new in zip(before, (half.keys, half.values), strict=True)]
    assert max(touched) <= {EVICT: 0, SPREAD: 16}.get(kind, 1)


@pytest.mark.parametrize("far", ["slots", "heads"])
@pytest.mark.parametrize("kind", [NEAREST, SPREAD])
def test_writes_beyond_two_to_the_31_numbers(kernel: ModuleType, kind: int, far: str) -> None:
    """Slots or heads so far apart that 32 bits cannot count the numbers between, which nobody touches."""
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 10 GB of the GPU's memory")
    close = _filled(kind, torch.float16)
    few = {"slots": (1, 40), "heads": (2, 40)}[far]
    tensors = {f.name: getattr(close, f.name) for f in fields(close) if isinstance(getattr(close, f.name), Tensor)}
    small = {name: _cut(tensor, *few) for name, tensor in tensors.items()}
    close = replace(close, **small)
    apart = 2**26 if far == "slots" else 2**31 + 8
    strides = (0, 0, apart, 1) if far == "slots" else (0, apart, 24, 1)
    size = (few[1] - 1) * apart + 24 if far == "slots" else apart + few[1] * 24
    spread = {}
    for name in ("keys", "values"):
        held = getattr(close, name)
        table = torch.empty(size, dtype=torch.float16, device=DEVICE).as_strided(held.shape, strides)
        spread[name] = table.copy_(held)
    wide = replace(_on_device(close), **spread)
    found, expected = _as_decided(kernel, wide), _as_decided(kernel, _on_device(close))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0, msg=name)


def _cut(tensor: Tensor, heads: int, slots: int) -> Tensor:
    """The first heads and slots of anything that has them."""
    if tensor.dim() == 1:
        return tensor
    return (tensor[:, :heads, :slots] if tensor.dim() > 2 else tensor[:, :heads]).clone()


class TestWhereItCannotBeMade:
    """The pipeline decides, one sentence is logged, and nobody tries again."""

    def test_the_pipeline_goes_on(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        model, tries = prepare(tiny_model("llama")), []
        plain = _decoded(make_cache(model, "keepkv", 0.4))

        def broken(work: Work) -> None:
            tries.append(work)
            raise RuntimeError("Failed to find C compiler.\nMore.")

        given = lambda device: None if dispatch._failed else broken  # noqa: E731
        monkeypatch.setattr(decisions, "decision_kernel", given)
        found = _decoded(make_cache(model, "keepkv", 0.4))
        torch.testing.assert_close(found, plain)
        assert len(tries) == 1
        (said,) = caplog.messages
        assert "decision kernel" in said and "gcc, python3-dev" in said and "KVLAB_KERNELS=off" in said

    def test_a_full_device_is_no_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(work: Work) -> None:
            raise torch.OutOfMemoryError("out of memory")

        monkeypatch.setattr(decisions, "decision_kernel", lambda device: full)
        with pytest.raises(torch.OutOfMemoryError):
            _decoded(make_cache(prepare(tiny_model("llama")), "h2o", 0.4))
        assert not dispatch._failed

    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "find_spec", lambda name: True)
        there = torch.device("cuda")
        monkeypatch.delenv(kernels.SWITCH, raising=False)
        assert dispatch.decision_kernel(there) is not None
        dispatch.decision_kernel.cache_clear()
        monkeypatch.setenv(kernels.SWITCH, "off")
        assert dispatch.decision_kernel(there) is None
        assert dispatch.decision_kernel(torch.device("cpu")) is None


def test_it_is_launched_where_the_layer_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model over several devices has layers that do not lie on the current one."""
    entered: list[torch.device] = []

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", Device)
    launched: list[list[torch.device]] = []
    stand_in = ModuleType("kvlab.core.cache.triton_inplace")
    stand_in.decide = lambda work: launched.append(list(entered))
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    there = torch.device("cuda:1")
    keys = SimpleNamespace(is_cuda=True, device=there)
    dispatch._launch(SimpleNamespace(keys=keys))
    assert launched == [[there]]


def test_what_the_kernel_does_not_know_is_left_to_the_pipeline() -> None:
    known = [name for name in registered() if name != "compose" and make_method(name).pipeline().in_place]
    assert {"h2o", "zsmerge", "keepkv", "cam", "d2o"} <= set(known)
    for name, options in (
        ("zsmerge", {"similarity": "l2"}),
        ("zsmerge", {"residual": 0}),
        ("keepkv", {"rule": "paper"}),
        ("keepkv", {"predict": "current"}),
        ("keepkv", {"space": "unrotated"}),
        ("d2o", {"variant": "code"}),
        ("d2o", {"mass": "votes"}),
        ("cam", {"variant": "simulation"}),
    ):
        assert not make_method(name, **options).pipeline().in_place, (name, options)
