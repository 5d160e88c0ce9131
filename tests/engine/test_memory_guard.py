"""Memory that runs out ends a comparison in one sentence: what was finished stays, and nothing is held."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.engine import compare
from kvlab.engine.out_of_memory import memory_guard
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run

REQUEST = CompareRequest(
    prompt="Down the rabbit hole they went. " * 6,
    choices=(MethodChoice(method="h2o", budget=0.3), MethodChoice(method="snapkv", budget=0.3)),
    max_new_tokens=3,
)


def too_much() -> Tensor:
    """As torch itself says it: more bytes than any machine has."""
    return torch.empty(2**52)


def memory_error() -> Tensor:
    raise MemoryError


def on_a_device() -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("fail", [too_much, memory_error, on_a_device])
def test_the_finished_runs_stay_and_the_failed_one_says_why(
    fail: object, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowAttention, "update", lambda *_: fail())
    with pytest.raises(UserError, match="ran out of memory") as raised:
        compare(REQUEST.model_copy(update={"model": str(tiny_model_folder)}), tmp_path)
    made = {run.record.method: run for run in map(open_run, (file.parent for file in tmp_path.glob("*/run.json")))}
    assert {name: run.record.status for name, run in made.items()} == {
        "full": "complete", "h2o": "complete", "snapkv": "failed",
    }  # fmt: skip
    said = str(raised.value)
    assert made["snapkv"].record.message == said
    assert "snapkv 30 %" in said
    assert "level light" in said, "it names a setting that needs less"
    assert "\n" not in said


def test_what_failed_is_not_held_by_its_error() -> None:
    held = []

    def work() -> None:
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        too_much()

    with pytest.raises(UserError) as raised, memory_guard(torch.device("cpu"), "h2o"):
        work()
    gc.collect()
    assert held[0]() is None, f"still there while somebody knows of {raised.value!r}"


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), memory_guard(torch.device("cpu"), "h2o"):
        raise RuntimeError("shapes do not match")


def test_memory_that_runs_out_for_the_full_cache_ends_the_comparison(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", lambda *_, **__: too_much())
    monkeypatch.setattr("kvlab.core.attention.slot_attention.scaled_dot_product_attention", lambda *_, **__: too_much())
    with pytest.raises(UserError, match=r"ran out of memory \(full cache\)"):
        compare(REQUEST.model_copy(update={"model": str(tiny_model_folder)}), tmp_path)
    (made,) = [open_run(file.parent).record for file in tmp_path.glob("*/run.json")]
    assert (made.method, made.status) == ("full", "failed") and "full cache" in made.message
