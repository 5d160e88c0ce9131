"""Weights in bf16: the product by its formula, what stays float32, the stated loss, bytes, and refusals."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from kvlab import load_model, make_cache
from kvlab.bench.request import BenchRequest
from kvlab.core.assets import asset_path
from kvlab.core.errors import UserError
from kvlab.core.fitted.files import model_digest
from kvlab.engine.environment import device_name, model_shape, step_weight_bytes, tensor_bytes
from kvlab.models import bfloat16_weights
from kvlab.models.fitting.observations import output_projection
from kvlab.models.info.size import find_model
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import ModelRequest

MINI = str(asset_path("mini"))


@pytest.fixture
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow bf16 weights on a processor without bf16 instructions: equal numbers, slower."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)


@pytest.fixture
def rounded(any_processor: None) -> LoadedModel:
    return load_model("mini", "cpu", weights="bf16")


def test_a_product_is_that_of_rounded_numbers() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(48, 20)
    plain = layer.weight.detach().clone()
    bias = layer.bias.detach().clone()
    model = nn.Sequential(layer)
    states = torch.randn(3, 7, 48)
    layer.__class__ = bfloat16_weights.Bfloat16Linear
    layer.weight = nn.Parameter(plain.bfloat16(), requires_grad=False)
    with torch.no_grad():
        found = model(states)
    for row, state in zip(found.flatten(0, 1), states.flatten(0, 1), strict=True):
        for number, weight, offset in zip(row, plain, bias, strict=True):
            product = (state.bfloat16().double() * weight.bfloat16().double()).sum().float()
            assert abs(float(number - product.bfloat16().float() - offset)) <= float(product.abs()) * 2**-7 + 1e-6
    assert found.dtype == torch.float32


def test_keys_values_and_embedding_stay_float32(rounded: LoadedModel) -> None:
    ids = rounded.encode("Down the rabbit hole.")
    ours, plain = make_cache(rounded, "full", 1.0), DynamicCache(config=rounded.model.config)
    with torch.inference_mode():
        logits = [rounded.model(ids, past_key_values=cache).logits for cache in (ours, plain)]
    assert (logits[0] - logits[1]).abs().max() < 1e-4  # full budget equals plain transformers
    assert plain.layers[0].keys.dtype == rounded.model.dtype == torch.float32
    assert rounded.model.get_input_embeddings().weight.dtype == torch.float32
    linear = [module for module in rounded.model.modules() if isinstance(module, nn.Linear)]
    assert {module.weight.dtype for module in linear} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("method", "settings"), [("criticalkv", {}), ("expected-attention", {"weight": "output"}), ("kvzip", {})]
)
def test_methods_that_read_weights_run(rounded: LoadedModel, method: str, settings: dict[str, Any]) -> None:
    ids = rounded.encode("Down the rabbit hole. " * 20)
    cache = make_cache(rounded, method, 0.3, **settings)
    with torch.inference_mode():
        rounded.model(ids, past_key_values=cache)
    assert 0.25 < cache.memory().live_slots / ids.shape[1] <= 0.31


def test_the_stated_loss_is_the_kl_to_plain_transformers(rounded: LoadedModel) -> None:
    exact = AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.float32).eval()
    text = asset_path(bfloat16_weights.TEXT).read_text(encoding="utf-8")[: bfloat16_weights.CHARACTERS]
    ids = AutoTokenizer.from_pretrained(MINI)(text, return_tensors="pt")["input_ids"][:, : bfloat16_weights.TOKENS]
    assert ids.shape[1] == bfloat16_weights.TOKENS
    with torch.inference_mode():
        true, found = (model(ids).logits[0].double().softmax(-1) for model in (exact, rounded.model))
    expected = sum(float((p * (p / q).log()).sum()) for p, q in zip(true, found, strict=True)) / len(true)
    assert rounded.rounding_kl == pytest.approx(expected, rel=0.02, abs=1e-6)
    assert 0 < expected < 0.05
    assert f"KL {rounded.rounding_kl:.2g} nats" in device_name(torch.device("cpu"), rounded.rounding_kl)


def test_bytes_are_the_tensors(rounded: LoadedModel) -> None:
    exact = load_model("mini", "cpu")
    linear = [module for module in rounded.model.modules() if isinstance(module, nn.Linear)]
    moved = sum(2 * module.weight.numel() for module in linear)
    others = sum(4 * weight.numel() for weight in rounded.model.parameters() if weight.dim() == 1)
    assert step_weight_bytes(rounded.model) == moved + others
    held = sum(weight.numel() * weight.element_size() for weight in rounded.model.parameters())
    assert find_model("mini").weight_bytes(4, "bf16") == pytest.approx(held, rel=0.01)
    assert model_shape(rounded).parameters == model_shape(exact).parameters
    assert model_shape(exact).title == "mini"
    assert model_shape(rounded).title == f"mini, weights in bf16 (KL to float32: {rounded.rounding_kl:.2g})"
    assert tensor_bytes(TwoTensor(torch.zeros(3, 4), torch.ones(3, 4))) == 2 * 4 * 12  # as torchao's quantized weights
    assert model_digest(rounded.model) != model_digest(exact.model)  # so rows of both are never one measurement


def test_without_instructions_or_on_several_devices_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    with pytest.raises(UserError, match=r"no bfloat16 instructions .* leave --weights out"):
        load_model("mini", "cpu", weights="bf16")
    with pytest.raises(UserError, match="need one device"):
        load_model("mini", "cpu", placement="auto", weights="bf16")


def test_float16_is_refused(any_processor: None) -> None:
    with pytest.raises(UserError, match="add --dtype float32"):
        load_model("mini", "cpu", "float16", weights="bf16")


def test_a_fit_reads_the_output_projection(rounded: LoadedModel) -> None:
    attention = rounded.model.model.layers[0].self_attn
    found = output_projection(attention)
    exact = load_model("mini", "cpu").model.model.layers[0].self_attn.o_proj.weight
    assert found is not None and torch.equal(found, exact.detach().bfloat16().float())


def test_requests_of_before_name_it_load_in() -> None:
    assert ModelRequest.model_validate({"model": "mini", "load_in": "8bit"}).weights == "8bit"
    assert BenchRequest.model_validate({"mode": "decode", "load_in": "8bit"}).weights == "8bit"
    assert ModelRequest(weights="bf16").loading["weights"] == "bf16"
