"""A plan against what was really allocated: tables, shadow and trace as counted, the peak as torch saw it."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.common import limits
from kvlab.core.attention.slot_attention import ROW_BLOCK
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.contract import slot_columns
from kvlab.core.methods import make_method, registered
from kvlab.core.stores import STORES
from kvlab.engine import compare, comparison_passes
from kvlab.engine.forward import decode_one, prefill
from kvlab.engine.out_of_memory import footprint_of
from kvlab.engine.recording.host_blocks import ROOM
from kvlab.engine.recording.recorder import Recorder
from kvlab.engine.recording.shadow import TOKENS_AT_ONCE
from kvlab.engine.shared_pass import SharedPass
from kvlab.model_info.size import model_from
from kvlab.models.load import LoadedModel, load_model, prepare
from kvlab.planning import memory, recording_bytes
from kvlab.planning.footprint import FULL, SHORT_TEXT, Footprint
from kvlab.planning.machine import has_tiles
from kvlab.planning.parts import Phase
from kvlab.planning.workload import LENGTHS_FROM, PlannedCache, Workload
from kvlab.requests.compare import CompareRequest, RecordLevel
from kvlab.trace import Run, open_run
from tests.families import ON_ANY_MODEL
from tests.planning.allocator import profiled, staged

# layers, query heads, KV heads, head_dim, hidden, intermediate, vocabulary, prompt tokens, type
SHAPES = {
    "grouped": (2, 4, 2, 16, 64, 128, 300, 900, torch.float32),
    "ungrouped": (3, 4, 4, 32, 128, 256, 300, 500, torch.float32),
    "wide groups": (2, 16, 2, 16, 64, 512, 300, 600, torch.float32),
    "a large vocabulary": (2, 4, 2, 32, 128, 256, 4000, 400, torch.float32),
    "half precision": (3, 8, 2, 32, 128, 256, 1000, 500, torch.bfloat16),
}
# The method that is run beside the full cache: each on shapes of its own, as all passes are looked into.
BESIDE = {
    "grouped": "keepkv",
    "ungrouped": "h2o",
    "wide groups": "keepkv",
    "a large vocabulary": "h2o",
    "half precision": "keepkv",
}
NEW = 3
NOT_TENSORS = ("weights", "the process", "freed blocks", "attention rows", "rows that wait to be written")
NO_BUDGET = ("full", "gvote", "kvzap-threshold", "compose")
WITH_BUDGET = [name for name in registered() if name not in NO_BUDGET]


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Any:
    return load_model(str(tiny_model_folder), "cpu").tokenizer


def model_of(name: str, tokenizer: Any = None) -> tuple[LoadedModel, int]:
    """(a random Llama of that shape, prompt tokens)."""
    layers, heads, key_value_heads, head_dim, hidden, intermediate, vocabulary, tokens, dtype = SHAPES[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=key_value_heads, head_dim=head_dim,
        hidden_size=hidden, intermediate_size=intermediate, vocab_size=vocabulary, max_position_embeddings=4096,
        bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LoadedModel(prepare(LlamaForCausalLM(config).to(dtype).eval()), tokenizer, name), tokens


def work_for(loaded: LoadedModel, tokens: int, level: RecordLevel = "light", new_tokens: int = NEW) -> Workload:
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    model = model_from(loaded.name, loaded.model.config.to_dict(), parameters)
    number = loaded.model.dtype.itemsize
    packs = has_tiles() and loaded.model.dtype == torch.bfloat16
    return Workload(model, tokens, new_tokens, number, model.weight_bytes(number), level, packs=packs)


def held_by(method: str) -> Footprint:
    return footprint_of(MethodChoice(method=method, hyper_parameters=ON_ANY_MODEL.get(method, {})))


def test_shared_numbers_are_the_cache_s_own() -> None:
    assert SHORT_TEXT == slot_columns.SHORT_TEXT
    assert LENGTHS_FROM == slot_columns.LENGTHS_FROM
    assert limits.ROW_BLOCK == ROW_BLOCK
    assert make_method("full").footprint() == FULL.model_dump()
    assert has_tiles() == torch.cpu._is_amx_tile_supported()


@pytest.mark.parametrize("method", ["full", *WITH_BUDGET])
@pytest.mark.parametrize("compress_every", [1, 4])
def test_tables_take_what_was_planned(method: str, compress_every: int) -> None:
    """Slots in the end, for a budget as a fraction; equal, or within the room that heads of unlike length share."""
    loaded, _ = model_of("grouped")
    tokens = 300
    torch.manual_seed(1)
    cache = make_cache(
        loaded.model,
        make_method(method, **ON_ANY_MODEL.get(method, {})),
        0.25 if method != "full" else 1.0,
        compress_every=compress_every,
    )
    prefill(loaded, cache, torch.randint(3, 300, (1, tokens)))
    for step in range(NEW - 1):
        decode_one(loaded, cache, torch.tensor(5 + step))
    work, holds = work_for(loaded, tokens), held_by(method)
    work = Workload(**(vars(work) | {"compress_every": compress_every}))
    planned = work.model.full_layers * work.slot_bytes(holds) * work.last_slots(holds, 0.25)
    planned += work.recalled_bytes(holds)
    assert planned == pytest.approx(cache.memory().allocated_bytes, rel=0.1)
    if held_by(method).decode:
        assert planned == cache.memory().allocated_bytes


@pytest.mark.parametrize("store", ["kivi4", "turbo3", "fp8"])
@pytest.mark.parametrize("method", ["packed", "snapkv", "h2o"])
@pytest.mark.parametrize("budget", [0.5, "30%B"])
def test_stores_take_what_was_planned(method: str, store: str, budget: float | str) -> None:
    """The most a table may take live is what a plan says, and what it takes is not far from that."""
    loaded, _ = model_of("grouped")
    tokens, made = 600, make_method(method, store=store)
    cache = make_cache(loaded.model, made, budget)
    prefill(loaded, cache, torch.randint(3, 300, (1, tokens), generator=torch.Generator().manual_seed(1)))
    work, holds = work_for(loaded, tokens), Footprint.model_validate(made.footprint())
    kept = min(work._kept(holds, budget), tokens)
    planned = work.model.full_layers * work.kept_bytes(holds, kept)
    told = cache.memory()
    # A plan knows what 64 and 128 numbers take; KIVI's scales of 16 are as many as of 32.
    assert 0.6 * planned < told.live_bytes <= planned * 1.1
    assert told.layers[0].codes_bytes and told.layers[0].scales_bytes


@pytest.mark.parametrize(
    ("rule", "budget", "meant"),
    [
        ("auto", "30%B", "lean4"),
        ("adaptive", "30%B", "centred6"),
        ("auto", "40%B", "int8"),
        ("adaptive", "1MiB", "centred4"),
        ("adaptive", 0.5, "native"),
    ],
)
def test_a_store_by_budget_is_planned_as_the_one_it_becomes(rule: str, budget: float | str, meant: str) -> None:
    """Which store that is was decided by `make_cache`; the plan is the one of the store by its own name."""
    loaded, _ = model_of("grouped")
    cache = make_cache(loaded.model, make_method("snapkv", store=rule), budget)
    assert cache.settings.store == STORES[meant]
    planned, named = (
        footprint_of(MethodChoice(method="snapkv", budget=budget, hyper_parameters={"store": store}))
        for store in (rule, meant)
    )
    assert planned == named and (planned.packed is None) == (meant == "native")


def test_the_shadow_takes_what_was_planned(tmp_path: Path) -> None:
    loaded, tokens = model_of("half precision")
    work = work_for(loaded, tokens, "full")

    nobody = SimpleNamespace(before_flush=[])
    recorder = Recorder(nobody, "full", tokens, NEW - 1)
    cache = make_cache(loaded.model, "full", 1.0, observer=recorder)
    prefill(loaded, cache, torch.randint(3, 300, (1, tokens)))
    shadows = [layer.shadow for layer in recorder.layers.values()]
    tensors = [block for shadow in shadows for block in (*shadow.keys, *shadow.values, shadow.owner)]
    planned = recording_bytes.shadow(work)
    assert planned.bytes == sum(tensor.nbytes for tensor in tensors) and planned.place == "host"
    assert (recording_bytes.TOKENS_AT_ONCE, recording_bytes.ROOM) == (TOKENS_AT_ONCE, ROOM)


def compared(
    methods: Sequence[str], level: RecordLevel, loaded: LoadedModel, tokens: int, **more: Any
) -> CompareRequest:
    """A request for a prompt of so many tokens, one for each byte after the first."""
    choices = tuple(
        MethodChoice(method=name, budget=1.0 if name == "full" else 0.2, hyper_parameters=ON_ANY_MODEL.get(name, {}))
        for name in methods
    )
    prompt = ("The old house on the hill. " * 60)[: tokens - 1]
    return CompareRequest(prompt=prompt, choices=choices, max_new_tokens=NEW, level=level, **more)


def taken(
    request: CompareRequest, loaded: LoadedModel, root: Path, patch: pytest.MonkeyPatch
) -> tuple[dict[str, int], list[Run]]:
    """(most bytes alive in each stage of the only pass, the runs); every method writes a text of its own at once."""
    chosen = iter(range(len(request.runs)))

    def second_best(_: object) -> Callable[[], Callable[[torch.Tensor], torch.Tensor]]:
        full = request.runs[next(chosen)].method == "full"
        return lambda: torch.argmax if full else lambda logits: logits.topk(2).indices[1]

    patch.setattr(comparison_passes, "chooser_of", second_best)
    engine = importlib.import_module("kvlab.engine.compare")
    timing = staged("timing", engine.time_interleaved)
    for name in ("_read_prompt", "run"):
        patch.setattr(SharedPass, name, staged(name, getattr(SharedPass, name)))
    patch.setattr(engine, "time_interleaved", lambda *given: (gc.collect(), timing(*given)))  # recorders are in cycles
    gc.collect()  # what earlier tests left would be freed in between
    found = profiled(lambda: compare(request, root, loaded=loaded))
    (_, ended, _), (begun, read, _), (timed, done, _) = found.stages
    peaks = {
        "prompt": found.most(begun, read),
        memory.DECODING: found.most(read, ended),
        memory.TIMING: found.most(timed, done),
    }
    return peaks, [open_run(path) for path in found.result]


def planned_peaks(phases: list[Phase]) -> dict[str, int]:
    """The most tensor bytes of each stage of a pass, beyond the weights."""
    most: dict[str, int] = {}
    for phase in phases[1:]:
        stage = phase.name if phase.name in (memory.DECODING, memory.TIMING) else "prompt"
        size = sum(part.bytes for part in phase.parts if part.name not in NOT_TENSORS)
        most[stage] = max(size, most.get(stage, 0))
    return most


def shares(planned: dict[str, int], took: dict[str, int]) -> dict[str, float]:
    assert planned.keys() == took.keys()
    return {stage: size / took[stage] for stage, size in planned.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_peaks_and_disk_are_within_a_tenth(
    name: str, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage of a comparison at level full: the most bytes alive, and each run's folder."""
    loaded, tokens = model_of(name, tokenizer)
    request = compared(["full", BESIDE[name]], "full", loaded, tokens)
    took, runs = taken(request, loaded, tmp_path, monkeypatch)
    assert runs[0].record.prompt_tokens == tokens
    planned, work = of_choices(request), work_for(loaded, tokens, "full")
    found = shares(planned_peaks(memory.phases(work, planned, "cpu")), took)
    assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=0.1)
    for index, (run, (_, holds, budget)) in enumerate(zip(runs, planned, strict=True)):
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
        needed = recording_bytes.run_bytes(work, holds, budget, len(runs)) + (
            recording_bytes.probe_bytes(work) if index == 0 else 0
        )
        assert needed == pytest.approx(size, rel=0.1), f"{run.record.method}: {needed / size:.2f} of its folder"


@pytest.mark.parametrize("level", ["light", "full"])
@pytest.mark.parametrize(("name", "chunk"), [("half precision", None), ("ungrouped", None), ("grouped", 128)])
def test_peaks_of_many_methods_at_once(
    name: str, chunk: int | None, level: RecordLevel, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads the prompt again, one that waits, one that merges, and two that evict; or in chunks."""
    loaded, tokens = model_of(name, tokenizer)
    methods = (
        ["full", "kvzip", "d2o", "keepkv", "snapkv", "h2o"] if chunk is None else ["full", "keepkv", "snapkv", "cam"]
    )
    request = compared(methods, level, loaded, tokens, prefill_chunk=chunk)
    took, _ = taken(request, loaded, tmp_path, monkeypatch)
    work = replace(work_for(loaded, tokens, level), chunk=chunk)
    found = shares(planned_peaks(memory.phases(work, of_choices(request), "cpu")), took)
    assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=0.1)


def test_what_cannot_share_a_pass_is_planned_by_itself() -> None:
    """While caches to time of finished runs stay, and an evaluation needs neither these nor a full cache."""
    loaded, tokens = model_of("grouped")
    work = work_for(loaded, tokens)
    blocks = held_by("h2o").model_copy(update={"block": 64})
    choices = [("full cache", FULL, 1.0), ("h2o", held_by("h2o"), 0.2), ("in blocks", blocks, 0.2)]
    made = {
        phase.name: {part.name: part.bytes for part in phase.parts} for phase in memory.phases(work, choices, "cpu")
    }
    copies = [PlannedCache(work, *choice).settled for choice in choices]
    times = {name: parts.get("caches to time", 0) for name, parts in made.items()}
    assert times["prompt: attention"] == 0
    assert times["decoding"] == times["in blocks, prompt: attention"] == sum(copies[:2])
    assert times["in blocks, decoding"] == times["timing"] == sum(copies)
    evaluated = {
        phase.name: {part.name for part in phase.parts}
        for phase in memory.phases_of_evaluation(work, choices[1:], "cpu", True)
    }
    assert evaluated.keys() == made.keys() - {"timing"}
    assert all(not parts & {"full cache", "caches to time"} for parts in evaluated.values())


def of_choices(request: CompareRequest) -> list[tuple[str, Footprint, float | int | str]]:
    holds = [FULL if choice.method == "full" else held_by(choice.method) for choice in request.runs]
    return [(choice.label, held, choice.budget) for choice, held in zip(request.runs, holds, strict=True)]
