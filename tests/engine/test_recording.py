"""What is recorded can be bounded by layers, heads and steps; what did not fit is said by the run and its reader."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import kvlab
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.contract.view import Slots
from kvlab.core.errors import UserError
from kvlab.engine import compare
from kvlab.engine.compare import compare as run_comparison
from kvlab.engine.recording.shadow import Shadow
from kvlab.models.load import load_model
from kvlab.papers.attention_rows import heads_with_attention, read_rows
from kvlab.papers.pyramid_pool.pyramid import attention_map
from kvlab.requests.compare import CompareRequest
from kvlab.requests.recording import (
    LEAST_LAYERS,
    Recording,
    attention_that_fits,
    history_that_fits,
    spread,
    states_that_fit,
)
from kvlab.trace import Run, open_run
from kvlab.views.autopsy import attention_to_span
from kvlab.views.frames.head_states import spread_heads

PROMPT = "The harbour lamp was lit at seven, and the old captain counted the boats as they came in."


@pytest.mark.parametrize(
    ("text", "layers", "heads", "every"),
    [
        ("", None, None, 1),
        ("every=4", None, None, 4),
        ("layers=0-3,8,heads=0,every=4", (0, 1, 2, 3, 8), (0,), 4),
        ("heads=1, 0, 1", None, (0, 1), 1),
    ],
)
def test_what_to_record_is_read_and_said_in_the_same_words(
    text: str, layers: tuple[int, ...] | None, heads: tuple[int, ...] | None, every: int
) -> None:
    found = Recording.parse(text)
    assert (found.layers, found.heads, found.every) == (layers, heads, every)
    assert Recording.parse(found.text) == found


@pytest.mark.parametrize(
    "text",
    ["layer=0", "0", "layers=", "layers=a", "layers=3-1", "every=0", "every=2,3", "every=1-2", "layers=0,layers=1"],
)
def test_what_cannot_be_recorded_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^What to record cannot be '[^']*': write layers=0-3,8,heads=0,every=4"):
        Recording.parse(text)


@pytest.mark.parametrize("layers", [1, 3, 6, 32, 80])
@pytest.mark.parametrize("tokens", [100, 4_000, 32_768, 1_000_000])
@pytest.mark.parametrize("steps", [1, 64, 4096])
def test_attention_rows_of_a_whole_run_stay_under_the_limit(layers: int, tokens: int, steps: int) -> None:
    """Bytes counted array by array; a run under the limit loses nothing, one over it keeps as many layers as fit."""
    most, every_layer = 2**29, list(range(layers))
    kept, sentence = attention_that_fits(Recording(), every_layer, 8, tokens, steps, most)
    rows = len(range(0, steps, kept.every))
    size = sum(rows * 8 * tokens * 2 * 2 for _ in kept.of_layers(every_layer))
    assert size <= most
    assert (kept == Recording()) == (sentence == "") == (layers * steps * 8 * tokens * 4 <= most)
    if kept.every > 1:
        assert len(kept.of_layers(every_layer)) <= LEAST_LAYERS
    elif sentence and kept.layers and len(kept.layers) > LEAST_LAYERS:
        assert size + steps * 8 * tokens * 4 > most  # one more layer would not have fitted


def test_the_limit_counts_what_was_asked_for_only() -> None:
    asked = Recording(layers=(1, 5), heads=(0,), every=2)
    assert attention_that_fits(asked, range(6), 8, 1000, 10, 2 * 5 * 1000 * 4) == (asked, "")
    assert attention_that_fits(asked, range(6), 8, 1000, 10, 2 * 5 * 1000 * 4 - 1)[0].every == 3


@pytest.mark.parametrize(("heads", "tokens"), [(8, 960), (8, 3_000), (8, 40_000), (8, 200_000), (8, 2_000_000)])
def test_history_of_a_probe_stays_under_the_limit(heads: int, tokens: int) -> None:
    """32 query heads in groups of 4 take an eighth of what 32 x 32 heads were counted at: 960 tokens fit whole."""
    layers, rows, sentence = history_that_fits(range(32), heads, tokens, 64, 64)
    assert len(layers) * (rows + 64) * heads * tokens * 4 <= 2**29
    assert (sentence == "") == (len(layers) == 32 and rows == 64)
    assert len(layers) == 32 or tokens > 4_000
    assert bool(layers) == (tokens < 1_000_000)


def test_what_is_spread_keeps_both_ends() -> None:
    assert spread(range(32), 4) == [0, 10, 21, 31]
    assert spread([3, 5], 4) == [3, 5] and spread(range(9), 1) == [4] and spread(range(9), 0) == []


@pytest.mark.parametrize(("layers", "runs", "tokens"), [(32, 5, 33_023), (32, 6, 33_023), (80, 6, 131_072), (3, 2, 90)])
def test_keys_and_values_of_a_comparison_stay_under_the_limit(layers: int, runs: int, tokens: int) -> None:
    """Bytes counted file by file; one more layer a run would not have fitted."""
    kept, sentence = states_that_fit(Recording(), range(layers), 8, 128, tokens, runs)
    layer = sum(8 * tokens * (128 * 2 + 2) for _ in ("keys", "values"))
    count = len(kept.of_layers(range(layers)))
    assert runs * count * layer <= 21.9e9 and (count == layers or runs * (count + 1) * layer > 21.9e9)
    assert (sentence == "") == (count == layers) == (runs * layers * layer <= 21.9e9)
    assert count == layers or {0, layers - 1} <= set(kept.of_layers(range(layers)))


def test_states_beyond_the_limit_are_left_out_and_said(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Run]
) -> None:
    tokens, shape = len(whole[0].keys(0, 0)[1]), whole[0].record.model
    layer = 2 * shape.num_key_value_heads * tokens * (shape.head_dim + 1) * 2
    two_layers = partial(states_that_fit, most=3 * 2 * layer + 1)  # three runs: the full cache is one of them
    monkeypatch.setattr(import_module("kvlab.engine.record"), states_that_fit.__name__, two_layers)
    for run, before in zip(recorded(tiny_model_folder, tmp_path), whole, strict=True):
        written = [load_file(path) for path in (run.path / "arrays").glob("[kv][ea][yl]*-layer-*.safetensors")]
        assert sum(tensor.nbytes for file in written for tensor in file.values()) == 2 * layer
        sentence = run.record.left_out["keys"]
        assert sentence.startswith("Keys and values were recorded of layers 0, 2 only: ")
        assert sentence in run.record.remarks
        for read in (run.keys, run.values):
            with pytest.raises(UserError, match=re.escape(sentence)):
                read(1, 0)
        assert (run.keys(2, 1)[0] == before.keys(2, 1)[0]).all()
        assert (run.attention(1, 0)[0] == before.attention(1, 0)[0]).all()
        assert dict(spread_heads(run)).keys() == {0, 2}
        assert re.search(r"at most 0\.0\d+ %", run.record.state_note)


def recorded(folder: Path, root: Path, **options: object) -> list[Run]:
    choices = (MethodChoice(method="h2o", budget=0.3), MethodChoice(method="zsmerge", budget=0.3))
    request = CompareRequest(prompt=PROMPT, choices=choices, max_new_tokens=8, **options)
    return [open_run(path, strict=True) for path in compare(request, root, loaded=load_model(str(folder), "cpu"))]


@pytest.fixture(scope="module")
def whole(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return recorded(tiny_model_folder, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def some(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    asked = Recording.parse("layers=0,2,heads=1,every=3")
    return recorded(tiny_model_folder, tmp_path_factory.mktemp("some"), record=asked)


def test_some_layers_heads_and_steps_are_those_of_the_whole_recording(whole: list[Run], some: list[Run]) -> None:
    for all_of_it, part in zip(whole, some, strict=True):
        for layer in (0, 2):
            for read in ("keys", "values"):
                for given, expected in zip(*(getattr(run, read)(layer, 1) for run in (part, all_of_it)), strict=True):
                    assert (given == expected).all()
            pairs = zip(part.attention(layer, 1, thinned=True), all_of_it.attention(layer, 1), strict=True)
            assert all((given == expected[::3]).all() for given, expected in pairs)
    assert (some[0].history(2, 1)[0] == whole[0].history(2, 1)[0]).all()
    sizes = [sum(path.stat().st_size for path in (run.path / "arrays").iterdir()) for run in (some[1], whole[1])]
    assert sizes[0] < 0.36 * sizes[1]  # 2 of 3 layers, 1 of 2 heads


def test_the_tables_do_not_depend_on_what_arrays_are_recorded(whole: list[Run], some: list[Run]) -> None:
    for all_of_it, part in zip(whole, some, strict=True):
        for table in ("steps", "events", "memory"):
            assert getattr(part, table).equals(getattr(all_of_it, table))


def test_what_was_not_asked_for_is_refused_in_a_sentence(some: list[Run]) -> None:
    for layer, head, what in ((1, 1, "layer 1"), (0, 0, "KV head 0")):
        for read in (some[0].keys, some[0].history, partial(some[0].attention, thinned=True)):
            with pytest.raises(UserError, match=f"Nothing was recorded of {what}: .* layers=0,2,heads=1,every=3 only"):
                read(layer, head)
    with pytest.raises(UserError, match="only every 3 steps"):
        some[1].attention(0, 1)
    with pytest.raises(UserError, match="only every 3 steps"):
        read_rows(some[1], 0, 1)
    assert heads_with_attention(some[1]) == []  # what looks from step to step has nothing to look at
    assert heads_with_attention(some[0]) == [(0, 1), (2, 1)]  # the probe has every row


def test_views_of_thinned_rows_show_the_same_at_the_steps_there_are(whole: list[Run], some: list[Run]) -> None:
    expected, given = attention_map(whole[1], 2, 1), attention_map(some[1], 2, 1)
    assert list(given.index) == list(expected.index)[::3]
    assert given.equals(expected.iloc[::3])
    lost = [attention_to_span(run, 2, 1, (10, 14)).set_index("step") for run in (some[1], whole[1])]
    assert lost[0].equals(lost[1].iloc[::3])


def test_beyond_the_limit_fewer_layers_are_kept_and_the_run_says_so(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[Run]
) -> None:
    tokens = whole[0].record.prompt_tokens + 7
    for module, fits, rows in (("record", attention_that_fits, 8), ("probe", history_that_fits, 64 + 8)):
        two_layers = partial(fits, most=2 * rows * 2 * (tokens + 1) * 4)
        monkeypatch.setattr(import_module(f"kvlab.engine.{module}"), fits.__name__, two_layers)
    monkeypatch.setattr("kvlab.requests.recording.LEAST_LAYERS", 2)
    runs = recorded(tiny_model_folder, tmp_path)
    for run in runs:
        assert (run.record.attention_rows.layers, run.record.attention_rows.every) == ((0, 2), 1)
        sentence = run.record.left_out["attention"]
        assert sentence in run.record.remarks
        assert sentence.startswith("Attention rows were recorded of layers 0, 2 only:")
        with pytest.raises(UserError, match=re.escape(sentence)):
            run.attention(1, 0)
        assert (run.attention(2, 0)[1] == whole[runs.index(run)].attention(2, 0)[1]).all()
        assert run.keys(1, 0)[0].shape[0] == tokens
    with pytest.raises(UserError, match="The probe's rows were recorded of layers 0, 2 only"):
        runs[0].history(1, 0)
    assert set(runs[0].record.left_out) == {"attention", "history"} and not whole[0].record.remarks


def test_python_bounds_a_recording_in_the_same_words(tiny_model_folder: Path, tmp_path: Path) -> None:
    loaded = load_model(str(tiny_model_folder), "cpu")
    made = kvlab.run(PROMPT, "h2o", 0.3, model=loaded, max_new_tokens=4, root=tmp_path, record="layers=2,every=3")
    assert made.record.recording == Recording(layers=(2,), every=3)
    assert {path.name for path in (made.path / "arrays").glob("keys*")} == {"keys-layer-002.safetensors"}
    with pytest.raises(UserError, match=r"^What to record cannot be 'layers=x'"):
        kvlab.run(PROMPT, "h2o", 0.3, model=loaded, root=tmp_path, record="layers=x")


def test_a_layer_that_the_model_lacks_is_refused_before_anything_runs(tiny_model_folder: Path, tmp_path: Path) -> None:
    for text, sentence in (("layers=3", "Layer 3 cannot be recorded"), ("heads=0,2", "KV head 2 cannot be recorded")):
        with pytest.raises(UserError, match=f"{sentence}: .* numbered 0 to"):
            recorded(tiny_model_folder, tmp_path, record=Recording.parse(text))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_stated_error_is_that_of_what_is_on_disk(tiny_model_folder: Path, tmp_path: Path, dtype: str) -> None:
    """Against the keys that a full cache holds after the same tokens, read one by one in double precision."""
    loaded = load_model(str(tiny_model_folder), "cpu", dtype)
    request = CompareRequest(prompt=PROMPT, choices=(MethodChoice(method="full", budget=1.0),), max_new_tokens=1)
    run = open_run(run_comparison(request, tmp_path, loaded=loaded)[0])
    cache, worst = make_cache(loaded, "full"), 0.0
    with torch.inference_mode():
        loaded.model(loaded.encode(PROMPT), past_key_values=cache, use_cache=True)
    for layer in cache.compressed_layers():
        assert layer.keys is not None
        file = load_file(run.path / "arrays" / f"keys-layer-{layer.layer_idx:03d}.safetensors")
        assert {tensor.dtype for tensor in file.values()} == {np.dtype(np.float16)}
        for head in range(2):
            for token in range(run.record.prompt_tokens):
                cached = layer.keys[0, head, token].double().numpy()
                stored = file["unit"][head, token].astype(float) * float(file["norm"][head, token])
                worst = max(worst, float(np.linalg.norm(stored - cached) / np.linalg.norm(cached)))
    assert run.record.array_error["keys"] == pytest.approx(worst, rel=1e-3)
    assert 0 < worst < 1.1e-3 and 0 < run.record.array_error["values"] < 1.1e-3


def test_storing_a_shadow_never_holds_a_layer_in_float32() -> None:
    """Of 20,000 tokens in bfloat16, two bytes a number are written, and float32 is used for a block at a time."""
    keys = torch.randn(1, 2, 20_000, 4).bfloat16()
    plain = torch.zeros(1, 2, 20_000)
    position = torch.arange(20_000, dtype=torch.int32).expand(1, 2, -1)
    shadow = Shadow(20_000)
    shadow.append(Slots(keys, keys, position, plain, plain, plain, plain == 0, {}), 20_000)
    stored = shadow.stored("keys", [1])
    assert stored.unit.nbytes == keys.nbytes // 2
    assert np.abs(np.linalg.norm(stored.unit.astype(float), axis=-1) - 1).max() < 1e-3
    np.testing.assert_allclose(stored.unit * stored.norm[..., None], keys[0, 1:].float().numpy(), rtol=2e-3, atol=2e-3)
