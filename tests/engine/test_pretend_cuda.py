"""Prompt, decision and decode steps of every method on a device that is not the host."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.checking.properties import NoReading
from kvlab.core.attention import layer_pass
from kvlab.core.attention.kernels import reference
from kvlab.core.cache import make_cache
from kvlab.core.cache.layers import decisions
from kvlab.core.choice import MethodChoice
from kvlab.core.contract.in_place import Work
from kvlab.core.contract.slot_columns import FREE
from kvlab.core.methods import make_method, registered
from kvlab.engine import compare
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.models.load import load_model, prepare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from tests.engine.pretend import CUDA, PretendCuda, decode_there, pretend_cuda, put_there
from tests.families import ON_ANY_MODEL, tiny_model

METHODS = [name for name in registered() if name != "compose"]
CHOICES = [
    (name, preset)
    for name in METHODS
    for preset in ("default", *registered()[name].presets)
    if preset == "default" or registered()[name].presets[preset].values
]
# Learned sinks, a float32 bias a query head, capped logits, sliding layers: each has a way of its own.
FAMILIES = ("gpt-oss", "falcon-alibi-grouped", "gemma2", "phi3-longrope")
PROMPT, WARM, STEADY = 40, 4, 2


def kinds() -> list[str]:
    """A method of each selector, settler and reading: what a recorder is told of is theirs, not the scorer's."""
    found: dict[tuple[object, ...], str] = {}
    for name in METHODS:
        made = make_method(name)
        parts = made.pipeline()
        found.setdefault((type(parts.select), type(parts.settle), made.sparse_attention is None, parts.decode), name)
    return list(found.values())


EVERY = 2


def _is_fixed(method: str, **options: object) -> bool:
    made = make_method(method, **options)
    return registered()[method].needs_budget and made.pipeline().decode


def _logits(
    model: PreTrainedModel, ids: Tensor, pretence: PretendCuda | None, method: str, **options: object
) -> Tensor:
    """Of the prompt, of decode steps and of steps in which nothing may be read where the budget is fixed."""
    options = ON_ANY_MODEL.get(method, {}) | options
    cache = make_cache(model, method, 0.4, compress_every=EVERY, **options)
    fixed = _is_fixed(method, **options)
    return decode_there(model, cache, ids, pretence, WARM + STEADY, lambda step: step >= WARM and fixed)


def _same_there(family: str, method: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    ids = torch.arange(2 * PROMPT).view(2, -1) % 90 + 3
    # A preset is of settings, which layers share.
    layers = 2 if options.get("preset", "default") == "default" else 1
    model = prepare(tiny_model(family, num_hidden_layers=layers) if family == "llama" else tiny_model(family))
    if family == "gpt-oss":
        model.set_experts_implementation("batched_mm")  # of transformers' ways the one that reads nothing
    expected = _logits(model, ids, None, method, **options)
    # What CUDA would take: the fused kernel's way in, with plain torch behind it.
    monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: reference if device.type == "cuda" else None)
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: None)
    with pretend_cuda(monkeypatch) as pretence:
        found = _logits(put_there(model), ids.to(CUDA), pretence, method, **options)
        assert found.device == CUDA
        found = found.cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("method", "preset"), CHOICES)
def test_a_method_runs_on_the_device_alone(method: str, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of the host meets one of the device, and the numbers are those of the CPU."""
    _same_there("llama", method, monkeypatch, preset=preset)


@pytest.mark.parametrize("method", ["h2o", "zsmerge", "keepkv", "cam", "d2o"])
def test_a_decision_in_one_kernel_is_given_what_lies_there(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And asks nothing of the host on the way: a stand-in lets some slot of each head go."""
    works: list[Work] = []

    def stand_in(work: Work) -> None:
        works.append(work)
        held = [getattr(work, part.name) for part in fields(work)]
        assert all(tensor.device == CUDA for tensor in held if isinstance(tensor, Tensor))
        work.position.scatter_(2, work.position.argmax(-1, keepdim=True), FREE)

    model = put_there(prepare(tiny_model("llama")))
    monkeypatch.setattr(layer_pass, "one_query_kernel", lambda device: reference if device.type == "cuda" else None)
    monkeypatch.setattr(decisions, "decision_kernel", lambda device: stand_in)
    cache = make_cache(model, method, 0.4, **({"merge": 4} if method == "cam" else {}))
    with pretend_cuda(monkeypatch) as pretence, torch.inference_mode():
        model((torch.arange(PROMPT)[None] % 90 + 3).to(CUDA), past_key_values=cache)
        tokens = [torch.full((1, 1), 3 + step, device=CUDA) for step in range(WARM + STEADY)]
        for step, token in enumerate(tokens):
            pretence.steady = step >= WARM
            with NoReading() if pretence.steady else nullcontext():
                model(token, past_key_values=cache)
    assert len(works) >= 3 * (WARM + STEADY - 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["h2o", "keepkv"])
def test_every_way_of_attention_runs_there(family: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _same_there(family, method, monkeypatch)


def test_a_comparison_is_recorded_there(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt, probe, shadow, recorder and runs of every kind of decision, at the fullest level."""
    choices = [MethodChoice(method=m, budget=0.3, hyper_parameters=ON_ANY_MODEL.get(m, {})) for m in kinds()]
    request = CompareRequest(
        prompt="The old house stood on the hill. ",
        model=str(tiny_model_folder),
        choices=tuple(choices),
        max_new_tokens=3,
    )
    here = load_model(str(tiny_model_folder))
    vocabulary = here.model.config.vocab_size
    here = replace(here, model=prepare(tiny_model("llama", vocab_size=vocabulary, num_hidden_layers=2)))
    expected = [open_run(path) for path in compare(request, tmp_path / "cpu", loaded=here)]
    # nobody can say how much memory of a device is free that is not there
    monkeypatch.setattr(importlib.import_module("kvlab.engine.compare"), "most_together", lambda *_: len(choices) + 1)
    with pretend_cuda(monkeypatch):
        there = replace(here, model=put_there(here.model))
        paths = compare(request, tmp_path / "cuda", loaded=there)
    for ours, theirs in zip([open_run(path) for path in paths], expected, strict=True):
        assert ours.record.status == "complete"
        assert ours.record.free_text == theirs.record.free_text
        assert ours.tokens["kl"].sub(theirs.tokens["kl"]).abs().max() < 1e-4, ours.record.method


def test_an_evaluation_runs_there(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts generated and likelihoods measured, two padded rows at once, heads of unequal lengths."""
    request = EvalRequest(
        tasks=(
            TaskChoice(task="key_value", difficulty={"pairs": 4}),
            TaskChoice(task="next_token_kl", difficulty={"continuation": 8}),
        ),
        choices=(MethodChoice(method="adakv", budget=0.3),),
        lengths=(300,),
        samples=2,
        batch_rows=2,
    )
    here = load_model(str(tiny_model_folder))
    expected = evaluate(request, tmp_path / "cpu", loaded=here).rows
    with pretend_cuda(monkeypatch):
        found = evaluate(request, tmp_path / "cuda", loaded=replace(here, model=put_there(here.model))).rows
    assert len(found) == len(expected) >= 8
    for name in ("score", "kl"):
        pd.testing.assert_series_equal(found[name], expected[name], rtol=1e-3, atol=1e-4)


def test_the_pretence_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    host = torch.arange(4)
    with pretend_cuda(monkeypatch) as pretence:
        there = host.to("cuda")
        assert there.device == (there + 1)[1:].device == torch.zeros(2, device=CUDA).device == CUDA
        assert there.cpu().device == torch.zeros(2).device == torch.device("cpu")
        for mixed in (lambda: there + host, lambda: there[host], lambda: torch.where(there > 1, there, host)):
            with pytest.raises(AssertionError, match="mixes host and device"):
                mixed()
        there += torch.tensor(1)  # a number without a shape may come from the host
        assert there.tolist() == [1, 2, 3, 4]
        pretence.steady = True
        for travel in (lambda: host.to(CUDA), lambda: there.cpu(), lambda: torch.tensor([1], device=CUDA)):
            with pytest.raises(AssertionError, match="from the host to the device or back"):
                travel()
        with pytest.raises(AssertionError, match="copies a number"):
            torch.where(there > 1, there, torch.tensor(1))
        with pytest.raises(AssertionError, match="begin new random numbers"):
            torch.Generator(CUDA)
        with pytest.raises(AssertionError, match="wait for the device"):
            torch.cuda.synchronize()
