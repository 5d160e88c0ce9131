"""Plans without any model: shapes read from configurations, and what the sentence names."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.cli.plan import parse_memory
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.environment import model_shape
from kvlab.models.info.size import find_model, kinds_of_layers, model_from
from kvlab.models.load import LoadedModel, prepare
from kvlab.planning.choices import Footprint
from kvlab.planning.plan import Machine, make_plan
from kvlab.requests.compare import CompareRequest
from tests.bench.test_shapes import PARAMETERS
from tests.families import FAMILIES, tiny_folder, tiny_model
from tests.models.test_hybrids import HYBRIDS

GB = 10**9
HOLDS = {
    "h2o": Footprint(),
    "snapkv": Footprint(decode=False),
}


def held_by(choice: MethodChoice) -> Footprint:
    return HOLDS[choice.method]


def machine(memory: float = 80, host: float = 500, device: str = "cuda") -> Machine:
    host = memory if device == "cpu" else host
    return Machine(device, "a device", int(memory * GB), int(host * GB))


def asked(*methods: str, **fields: object) -> CompareRequest:
    choices = tuple(MethodChoice(method=method, budget=0.2) for method in methods or ("h2o", "snapkv"))
    return CompareRequest(**({"prompt": "-", "model": "shape:llama3-8b", "choices": choices} | fields))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_says_what_the_loaded_model_is(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / family, family)
    read, loaded = find_model(str(folder)), tiny_model(family, vocab_size=259)
    shape = model_shape(LoadedModel(loaded, None, family))
    assert (read.layers, read.heads, read.key_value_heads, read.head_dim) == (
        shape.num_hidden_layers, shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim,
    )  # fmt: skip
    assert read.parameters == shape.parameters
    kinds = getattr(loaded.config, "layer_types", None) or []
    every = read.layers if family == "mistral-sliding" else 0  # its configuration names no kinds of layers
    assert read.sliding_layers == (sum(kind == "sliding_attention" for kind in kinds) or every)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_worked_out_where_no_weights_are(name: str) -> None:
    """As their makers count them."""
    assert find_model(f"shape:{name}").parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.02)


def test_experts_count_all_in_memory_and_a_few_in_a_pass() -> None:
    """Mixtral 8x7B, by its published numbers: 46.7 thousand million parameters, 12.9 of them a token."""
    config = {
        "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    model = model_from("mixtral", config)
    assert model.parameters / 1e9 == pytest.approx(46.7, rel=0.01)
    assert model.read_per_token / 1e9 == pytest.approx(12.9, rel=0.02)


def test_a_model_that_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    for name in ("nobody/nothing", str(tmp_path), "shape:nothing"):
        with pytest.raises(UserError):
            find_model(name)
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    with pytest.raises(UserError, match="does not say"):
        find_model(str(tmp_path))


@given(st.integers(2, 60_000), st.integers(1, 60_000))
@settings(max_examples=30, deadline=None)
def test_more_tokens_never_need_less(tokens: int, more: int) -> None:
    """But that beyond so many logits those of the last prompt token alone are kept."""
    model = find_model("shape:qwen2.5-7b")
    fewer, longer = (make_plan(asked(), count, model, held_by, machine()).parts for count in (tokens, tokens + more))
    assert all(one.bytes <= other.bytes for one, other in zip(fewer, longer, strict=True) if one.name != "logits")


def test_the_sentence_names_what_is_too_small_and_the_largest_part() -> None:
    model = find_model("shape:llama3-8b")
    small = make_plan(asked(), 32_768, model, held_by, machine(14))
    assert small.verdict.startswith("This needs about ") and not small.fits
    assert "a device has 13 GiB free; the largest part is weights, 15 GiB." in small.verdict
    long = make_plan(asked(), 250_000, model, held_by, machine(40))
    assert "the largest part is full cache, 30.8 GiB" in long.verdict, "32 x 8 x 250,063 slots of 516 bytes"
    assert make_plan(asked(), 1000, model, held_by, machine(80)).verdict.startswith("It fits")


def test_what_accelerate_may_leave_on_the_host_is_not_refused() -> None:
    plan = partial(make_plan, tokens=8192, model=find_model("shape:llama2-13b"), holds=held_by)
    request = asked(placement="auto")
    assert plan(request, machine=machine(20)).refusal == ""
    assert plan(asked(), machine=machine(20)).refusal.startswith("This needs about")
    two, three = (plan(request, machine=replace(machine(20), devices=count)) for count in (2, 3))
    assert (two.limit, three.limit) == (40 * GB, 60 * GB)
    assert plan(asked(), machine=replace(machine(20), devices=3)).limit == 20 * GB, "all layers are on one of them"


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24 * GB), ("512 MB", 512_000_000), ("1.5g", 15 * GB // 10), ("7", 7)]
)
def test_memory_is_read_in_words(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "much", "-3GB", "0", "24XB"])
def test_what_is_no_amount_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="24GB"):
        parse_memory(text)


def test_a_plan_brings_no_model_stack() -> None:
    code = "import sys, kvlab.forms.plan_preview, app.entries.new_run; "
    code += "print({'torch', 'transformers'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "set()"


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_hybrid_s_layers_are_those_its_cache_compresses(family: str, tmp_path: Path) -> None:
    """Each family names its kinds of layers in a way of its own in `config.json`."""
    folder = tiny_folder(tmp_path / family, family)
    read, cache = find_model(str(folder)), make_cache(prepare(tiny_model(family)), "full")
    assert read.full_layers == len(cache.compressed_layers())
    assert (read.layers, read.sliding_layers) == (len(cache.layers), 0)


@pytest.mark.parametrize(
    ("config", "full"),
    [
        ({"hybrid_override_pattern": "M-M*-M*E"}, 2),
        ({"layers_block_type": ["mamba", "attention", "mamba", "attention"]}, 2),
        ({"attn_layer_period": 4, "attn_layer_offset": 2}, 2),
        ({"attn_layer_indices": [0, 5]}, 2),
    ],
)
def test_older_configurations_name_layers_otherwise(config: dict[str, object], full: int) -> None:
    assert kinds_of_layers(config, 8) == (full, 0, 0)


def test_packing_leaves_the_tables_as_they_are() -> None:
    """Llama 3 8B: 2 x 128,256 x 4,096 numbers in 2 bytes, the rest in 4 bit with 4 bytes for 64."""
    model = find_model("shape:llama3-8b")
    tables = 2 * 128_256 * 4_096
    rest = model.parameters - tables
    assert model.weight_bytes(2, "4bit") == pytest.approx(2 * tables + rest / 2 + 4 * rest / 64, rel=1e-6)
    assert model.weight_bytes(2) == 2 * model.parameters
