"""Readings of speed: in turns over the runs, replayed where steps can be captured, told with what they bear."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvlab.core.cache import CompressedCache, make_cache
from kvlab.core.choice import MethodChoice
from kvlab.engine import compare, interleaved_timing
from kvlab.engine.forward import prefill
from kvlab.engine.interleaved_timing import measure_speed
from kvlab.models.load import LoadedModel, load_model, prepare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from kvlab.trace.catalogue import equal_requests
from kvlab.trace.schema import SpeedReading
from kvlab.views.frames.compare import headline
from kvlab.views.frames.speed import Speed, limit_text, ratio_text, speed_of
from tests.families import tiny_model

IDS = torch.arange(3, 43)[None]


@pytest.fixture
def loaded() -> LoadedModel:
    return LoadedModel(prepare(tiny_model("llama")), None, "tiny")


@torch.inference_mode()
def after_prompt(loaded: LoadedModel, method: str, budget: float, **options: int) -> CompressedCache:
    cache = make_cache(loaded, method, budget, **options)
    prefill(loaded, cache, IDS)
    return cache


@pytest.mark.parametrize(
    ("method", "captures", "way"),
    [("keepkv", True, "captured"), ("keepkv", False, "eager"), ("snapkv", True, "eager"), ("full", True, "eager")],
)
def test_steps_are_replayed_where_they_can_be(loaded: LoadedModel, method: str, captures: bool, way: str) -> None:
    budget = 1.0 if method == "full" else 0.4
    reading = measure_speed(loaded, after_prompt(loaded, method, budget), 5, 11, captures=captures)
    assert reading is not None and reading.way == way and reading.rate > 0


@pytest.mark.parametrize("every", [1, 4])
def test_a_reading_is_of_whole_periods_and_of_no_first_step(
    loaded: LoadedModel, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which step n takes n seconds: the rate tells which steps were counted."""
    now, steps = [0.0], iter(range(1, 1000))

    def perf_counter() -> float:
        now.append(now[-1] + (next(steps) if len(now) % 2 == 0 else 0))
        return now[-1]

    monkeypatch.setattr(interleaved_timing, "time", SimpleNamespace(perf_counter=perf_counter))
    reading = measure_speed(loaded, after_prompt(loaded, "h2o", 0.4, compress_every=every), 5, 11)
    counted = list(range(2, 7)) if every == 1 else list(range(3, 7))  # of 6 steps, the first aside
    assert reading is not None and reading.rate == pytest.approx(len(counted) / sum(counted))


def test_a_single_new_token_has_no_step(loaded: LoadedModel) -> None:
    assert measure_speed(loaded, after_prompt(loaded, "h2o", 0.4), 5, 0) is None


def test_runs_are_read_in_turns_and_stay_sound(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    read = interleaved_timing.measure_speed

    def noted(loaded: LoadedModel, cache: object, *rest: object) -> SpeedReading | None:
        order.append(type(cache.settings.pipeline.settle).__name__)
        return read(loaded, cache, *rest)

    monkeypatch.setattr(interleaved_timing, "measure_speed", noted)
    monkeypatch.setattr(importlib.import_module("kvlab.engine.compare"), "TURNS_SHARE", 1e6)
    request = CompareRequest(
        prompt="Where is the rabbit? " * 4,
        model=str(tiny_model_folder),
        choices=tuple(MethodChoice(method=method, budget=0.4) for method in ("h2o", "keepkv")),
        max_new_tokens=5,
        device="cpu",
    )
    runs = [open_run(path) for path in compare(request, tmp_path)]
    assert len(order) == 12 and order[:3] == order[3:6] == order[6:9] == order[9:] and len(set(order[:3])) > 1
    for run in runs:
        assert [reading.way for reading in run.record.speed_readings] == ["eager"] * 3
        assert run.record.status == "complete"
    frame = headline(runs)
    assert frame["readings"].str.startswith("4 in turns").all() and (frame["way"] == "eager").all()
    monkeypatch.setattr(importlib.import_module("kvlab.engine.compare"), "TURNS_SHARE", 0.0)
    assert len(open_run(compare(request, tmp_path)[0]).record.speed_readings) == 1, "a short turn is always taken"
    monkeypatch.setattr(importlib.import_module("kvlab.common.limits"), "SHORT_TURN", 0.0)
    assert not open_run(compare(request, tmp_path)[0]).record.speed_readings, "no time, no further turn"


def test_answers_are_there_before_speeds_and_stay_if_timing_is_stopped(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompareRequest(
        prompt="Where is the rabbit? " * 4,
        model=str(tiny_model_folder),
        choices=(MethodChoice(method="h2o", budget=0.4),),
        max_new_tokens=5,
        device="cpu",
    )
    reported: list[list[Path]] = []

    def stop(*_: object) -> None:
        assert len(reported) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(interleaved_timing, "measure_speed", stop)
    with pytest.raises(KeyboardInterrupt):
        compare(request, tmp_path, answered=reported.append)
    runs = [open_run(path) for path in reported[0]]
    assert [run.record.status for run in runs] == ["complete"]
    assert all(run.record.free_text and run.record.decode_tokens_per_second is None for run in runs)
    assert not list(equal_requests(tmp_path, request)), "nothing is left to be resumed"


def test_the_limit_of_a_speed_is_that_of_its_bytes(tiny_model_folder: Path, tmp_path: Path) -> None:
    """(W + C) / (W + bC), from the tensors themselves."""
    loaded = load_model(str(tiny_model_folder), "cpu")
    request = CompareRequest(
        prompt="Where is the rabbit? " * 8,
        model=str(tiny_model_folder),
        choices=(MethodChoice(method="streaming-llm", budget=0.2), MethodChoice(method="full", budget=1.0)),
        max_new_tokens=4,
        device="cpu",
        level="light",
    )
    frame = headline([open_run(path) for path in compare(request, tmp_path, loaded=loaded)]).set_index("method")
    assert frame.loc["full", "speed_limit"] == 1
    config = loaded.model.config
    assert config.tie_word_embeddings or loaded.model.get_output_embeddings() is not None
    weights = sum(weight.nbytes for weight in loaded.model.parameters())
    if not config.tie_word_embeddings:
        weights -= loaded.model.get_input_embeddings().weight.nbytes
    held = {}
    for method, budget in (("streaming-llm", 0.2), ("full", 1.0)):
        cache = make_cache(loaded, method, budget)
        ids = loaded.tokenizer(request.prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            loaded.model(ids, past_key_values=cache)
            loaded.model(ids[:, :1], past_key_values=cache)
        held[method] = cache.memory().live_bytes
    right = (weights + held["full"]) / (weights + held["streaming-llm"])
    assert frame.loc["streaming-llm", "speed_limit"] == pytest.approx(right, rel=1e-3)
    row = frame.loc["streaming-llm"]
    assert row["speed_ratio_doubt"] or row["limit_reached"] == row["speed_ratio"] / row["speed_limit"]
    assert limit_text(1.0) == "1 x, saves nothing" and limit_text(1.327) == "1.33 x"
    assert ratio_text(0.9, "") == "0.9 x, slower" and ratio_text(1.2, "") == "1.2 x"


def test_ratios_are_those_the_readings_bear() -> None:
    assert Speed("eager", (23.4,), (23.4,)).rate == 23.4 and Speed("eager", (), ()).rate is None
    close, far = Speed("eager", (10.0, 11.0), (10.0, 11.0)), Speed("eager", (10.0, 20.0), (10.0, 20.0))
    assert "busy machine" not in str(close.columns()) and "busy machine" in str(far.columns()["readings"])
    assert "one reading" in str(Speed("eager", (23.4,), (23.4,)).columns()["speed"])
    captured, full = Speed("captured", (100.0, 102.0), (20.0,)), Speed("eager", (40.0,), (40.0,))
    assert captured.ratio_to(full)[0] == 0.5, "eager against eager: the full cache was not captured"
    assert captured.ratio_to(captured)[0] == 1 and captured.ratio_to(None)[0] is None


def test_captured_readings_are_told_before_eager_ones() -> None:
    readings = (SpeedReading(way="captured", rate=90.0), SpeedReading(way="eager", rate=30.0))
    record = SimpleNamespace(decode_tokens_per_second=31.0, speed_readings=readings)
    assert speed_of(record) == Speed("captured", (90.0,), (31.0, 30.0))
