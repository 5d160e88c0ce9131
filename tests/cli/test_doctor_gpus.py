"""What `kvlab doctor` says of GPUs and of what the fused kernels need, on a machine that pretends to have them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import kvlab.attention.kernels as kernels
from kvlab.attention.launch_shape import shared_memory
from kvlab.cli import commands
from kvlab.cli.doctor import _fused_kernels, _gpus  # the report's parts, without its self-tests

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
