"""Plans without any model: shapes read from configurations, advice that really helps, time from earlier runs."""

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
from kvlab.model_info.architectures import SHAPES
from kvlab.model_info.size import kinds_of_layers, model_from
from kvlab.models.load import LoadedModel, prepare
from kvlab.planning import Machine, find_model, make_plan
from kvlab.planning.footprint import Footprint
from kvlab.planning.plan import can_plan
from kvlab.requests.compare import CompareRequest
from kvlab.requests.recording import Recording
from tests.bench.test_shapes import PARAMETERS
from tests.families import FAMILIES, tiny_folder, tiny_model
from tests.models.test_hybrids import HYBRIDS

GB = 10**9
HOLDS = {
    "h2o": Footprint(),
    "snapkv": Footprint(all_rows=False, rows=32, decode=False),
    "pyramid": Footprint(saves_prefill=True),
}


def held_by(choice: MethodChoice) -> Footprint:
    return HOLDS[choice.method]


def machine(memory: float = 80, host: float = 500, device: str = "cuda", disk: float = 10_000) -> Machine:
    host = memory if device == "cpu" else host
    return Machine(device, "a device", int(memory * GB), int(host * GB), int(disk * GB))


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


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(set(SHAPES) - {"tiny"})),
    st.integers(100, 100_000),
    st.sampled_from([16.0, 24.0, 40.0, 80.0]),
    st.sampled_from([("h2o",), ("snapkv",), ("h2o", "snapkv"), ("pyramid",)]),
)
def test_every_way_that_is_named_really_makes_it_fit(
    shape: str, tokens: int, memory: float, methods: tuple[str, ...]
) -> None:
    request, here = asked(*methods, model=f"shape:{shape}"), machine(memory)
    plan = make_plan(request, tokens, find_model(request.model), held_by, here)
    assert plan.fits == (plan.total <= here.device_bytes and plan.host_bytes <= here.host_bytes)
    assert bool(plan.ways) <= (not plan.fits)
    for way in plan.ways:
        length, changed = tokens, {}
        for part in way.split(" and "):
            if part == "level light":
                changed["level"] = "light"
            elif part.startswith("a prefill chunk of "):
                changed["prefill_chunk"] = int(part.split()[-1].replace(",", ""))
            elif part.endswith(" new tokens"):
                changed["max_new_tokens"] = int(part.split()[0].replace(",", ""))
            elif part.startswith("weights in "):
                changed["load_in"] = f"{part.split()[2]}bit"
            elif part.endswith(" prompt tokens"):
                length = int(part.split()[2].replace(",", ""))
            else:
                assert part.startswith("no ")
                gone = part[3:].split(", ")
                changed["choices"] = tuple(choice for choice in request.choices if choice.label not in gone)
        again = make_plan(request.model_copy(update=changed), length, find_model(request.model), held_by, here)
        assert again.fits, way


@given(st.integers(2, 60_000), st.integers(1, 60_000), st.sampled_from(["off", "light", "full"]))
@settings(max_examples=30, deadline=None)
def test_more_tokens_and_more_recording_never_need_less(tokens: int, more: int, level: str) -> None:
    model = find_model("shape:qwen2.5-7b")

    def total(count: int, at: str) -> tuple[int, int]:
        plan = make_plan(asked(level=at), count, model, held_by, machine())
        return plan.total, plan.trace.bytes

    longer = total(tokens + more, level)
    assert all(a >= b for a, b in zip(total(tokens, "full"), total(tokens, level), strict=True))
    if model.vocabulary * tokens > 2**28:  # up to there logits of the whole prompt are kept, beyond of one token
        assert longer[0] >= total(tokens, level)[0]


def test_the_sentence_names_what_is_too_small() -> None:
    model = find_model("shape:llama3-8b")
    small = make_plan(asked(), 32_768, model, held_by, machine(24))
    assert "22.4 GiB free" in small.verdict
    assert "level light and a prefill chunk" in small.verdict or "prompt tokens" in small.verdict
    assert make_plan(asked(), 1000, model, held_by, machine(80)).verdict.startswith("It fits")
    full_disk = make_plan(asked(), 8000, model, held_by, machine(80, disk=1))
    assert "the disk has 954 MiB free" in full_disk.verdict
    assert "level light" in full_disk.ways
    tiny = make_plan(asked(), 1000, model, held_by, machine(2))
    assert tiny.ways == ()
    assert "smaller model" in tiny.verdict


def test_runs_that_a_gpu_cannot_hold_together_are_planned_in_halves() -> None:
    """As the engine repeats them; a CPU's memory ends the process instead."""
    methods, model = ("h2o", "snapkv") * 4, find_model("shape:llama3-8b")
    plan = partial(make_plan, asked(*methods, level="light"), 32_768, model, held_by)
    whole = plan(machine(400))
    halves = plan(machine(whole.device_bytes / GB - 1))
    assert whole.fits and halves.fits and halves.device_bytes < whole.device_bytes
    names = [phase.name for phase in halves.phases]
    assert "part 1 of 2, decoding" in names and names[-1] == "timing"
    assert [phase.name for phase in whole.phases][-2:] == ["decoding", "timing"]
    on_host = plan(machine(400, device="cpu"))
    assert not plan(machine(on_host.host_bytes / GB - 1, device="cpu")).fits


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
    code = "import sys, kvlab.forms.plan_preview, app.new_run.plan_panel; "
    code += "print({'torch', 'transformers'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "set()"


@pytest.mark.parametrize(("methods", "runs"), [(("h2o", "snapkv", "h2o", "snapkv"), 5), (("h2o",) * 5, 6)])
def test_a_long_recording_of_five_methods_stays_under_24_gb_of_disk(methods: tuple[str, ...], runs: int) -> None:
    """32 layers x 8 KV heads x 32,768 tokens x 256 steps; of five runs every key and value is kept."""
    model = find_model("shape:llama3-8b")
    assert (model.full_layers, model.key_value_heads, model.head_dim) == (32, 8, 128)
    plan = make_plan(asked(*methods, max_new_tokens=256), 32_768, model, held_by, machine())
    states = runs * 2 * 32 * 8 * (32_768 + 255) * (128 + 1) * 2
    assert plan.trace.bytes < 24e9
    assert (plan.trace.bytes > states) == (runs == 5)


def test_what_is_not_recorded_takes_no_disk() -> None:
    model = find_model("shape:llama3-8b")
    plans = [
        make_plan(asked(record=Recording.parse(text)), 8000, model, held_by, machine()).trace.bytes
        for text in ("", "layers=0-7", "layers=0-7,heads=0,1")
    ]
    states = 3 * 2 * 8 * (8000 + 63) * (128 + 1) * 2  # of one layer in three runs
    assert plans[0] - plans[1] > 0.99 * 24 * states
    assert plans[1] - plans[2] > 0.99 * 8 * states * 6 / 8


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


def test_several_devices_share_layers_and_no_pass() -> None:
    """70 GB of weights on four devices of 24 GB: by layers, while logits and attention are on each alone."""
    plan = partial(make_plan, tokens=8192, model=find_model("shape:llama2-13b"), holds=held_by)
    room = replace(machine(1000), devices=4)
    one, spread = (plan(asked(placement=placement), machine=room) for placement in ("single", "auto"))
    for alone, shared in zip(one.phases, spread.phases, strict=True):
        for part, there in zip(alone.parts, shared.parts, strict=True):
            if part.name in ("weights", "full cache", "compressed caches", "caches to time", "cache that is timed"):
                assert part.bytes / 4 <= there.bytes <= part.bytes * 11 / 40 + 1, "of 40 layers, 10 and one more"
            elif part.name == "weights on their way":
                assert there.bytes == part.bytes // 40
            else:
                assert part == there
    assert spread.device_bytes < one.device_bytes / 2
    four = replace(machine(24), devices=4)
    one, spread = (plan(asked(placement=placement), machine=four) for placement in ("single", "auto"))
    assert spread.fits and not one.fits
    assert one.ways[0] == "placement auto over 4 devices"
    assert can_plan(asked(placement="auto"), four) and not can_plan(asked(placement="auto"), machine(24))
