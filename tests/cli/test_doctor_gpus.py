"""What `kvlab doctor` says of GPUs and of what the fused kernels need, on a machine that pretends to have them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import kvlab.core.attention.kernels as kernels
from kvlab.cli import commands
from kvlab.cli.doctor import DECIDED, _check_decisions, _fused_kernels, _gpus  # the report's parts
from kvlab.core.attention.kernels import shared_memory
from kvlab.core.cache.layers import dispatch

doctor = importlib.import_module("kvlab.cli.doctor")  # the package also has an object of this name

GIB = 2**30
CARDS = (("Small", 8 * GIB, 24 * GIB, (8, 6), 101376), ("Large", 70 * GIB, 80 * GIB, (9, 0), 232448))


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(CARDS))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: CARDS[index][1:3])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: CARDS[index][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: CARDS[index][3])
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(shared_memory_per_block_optin=CARDS[device.index][4]),
    )
    shared_memory.cache_clear()


@pytest.mark.usefixtures("two_cards")
def test_every_gpu_is_named() -> None:
    assert _gpus() == {
        "cuda:0": "Small, 8.0 of 24.0 GiB free, sm_86, 99 KiB shared memory",
        "cuda:1": "Large, 70.0 of 80.0 GiB free, sm_90, 227 KiB shared memory",
    }
    shared_memory.cache_clear()


def test_what_the_kernels_lack_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    monkeypatch.setattr(kernels.sysconfig, "get_path", lambda name: "/nowhere")
    said = _fused_kernels()
    assert "C compiler" in said and "Python.h" in said and "plain torch" in said and "triton" not in said
    monkeypatch.setattr(kernels, "missing", lambda: [])
    assert _fused_kernels().startswith("ready")
    monkeypatch.setenv(kernels.SWITCH, "off")
    assert "KVLAB_KERNELS=off" in _fused_kernels() and "ready" not in _fused_kernels()


def test_the_help_tells_how_to_switch_them_off() -> None:
    assert "KVLAB_KERNELS=off" in CliRunner().invoke(commands, ["doctor", "--help"]).stdout


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels on the CPU, in Triton's interpreter, which tests/conftest.py turns on; off where the switch says so."""
    pytest.importorskip("triton", reason="the package triton is not installed: pip install kvlab[kernels]")

    def on(device: torch.device) -> bool:
        return os.environ.get(kernels.SWITCH) != "off"

    monkeypatch.delenv(kernels.SWITCH, raising=False)
    for module in (kernels, dispatch):
        monkeypatch.setattr(module, "kernels_on", on)
        monkeypatch.setattr(module, "_failed", False)
    for cached in (kernels.one_query_kernel, dispatch.decision_kernel):
        cached.cache_clear()
    yield
    for cached in (kernels.one_query_kernel, dispatch.decision_kernel):
        cached.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are not interpreted where there is a GPU")
@pytest.mark.usefixtures("interpreted")
def test_the_decision_kernel_is_held_against_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    launches, launch = [], dispatch._launch

    def counted(work: dispatch.Work) -> None:
        launches.append(work.kind)
        launch(work)

    monkeypatch.setattr(dispatch, "_launch", counted)
    said = _check_decisions(torch.device("cpu"))
    assert all(method in said for method in DECIDED) and "largest difference" in said
    assert set(launches) == set(range(5)), "each kind of decision was the kernel's"
    assert os.environ.get(kernels.SWITCH) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are not interpreted where there is a GPU")
@pytest.mark.usefixtures("interpreted")
def test_a_decision_kernel_that_is_wrong_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = dispatch._launch

    def wrong(work: dispatch.Work) -> None:
        launch(work)
        work.values.neg_()

    monkeypatch.setattr(dispatch, "_launch", wrong)
    with pytest.raises(ArithmeticError, match="differs from the pipeline by"):
        _check_decisions(torch.device("cpu"))

    def broken(work: dispatch.Work) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(dispatch, "_launch", broken)
    dispatch.decision_kernel.cache_clear()
    assert "cannot be compiled here" in _check_decisions(torch.device("cpu"))


@pytest.mark.usefixtures("two_cards")
def test_both_kernels_are_tested_on_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("_check_kernel", "_check_decisions"):
        monkeypatch.setattr(doctor, name, lambda device, name=name: asked.append(f"{name} {device}") or "fine")
    for name in ("_check_full_budget", "_check_comparison"):
        monkeypatch.setattr(doctor, name, lambda: "fine")
    report = doctor._self_tests()
    assert asked == [f"{name} cuda:{index}" for index in (0, 1) for name in ("_check_kernel", "_check_decisions")]
    assert {"self-test: attention kernel, cuda:1", "self-test: decision kernel, cuda:1"} <= set(report)
