"""The time left of a comparison follows what its own steps took, phase by phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.queue.job_panel import words_left
from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.engine.progress import LATEST, Forecast
from kvlab.jobs import JobStatus
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest, Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_steps_left_times_what_they_took():
    clock = Clock()
    forecast = Forecast({"prompt": 2, "decoding": 10, "timing": 4}, clock)
    for phase, seconds in (("prompt", 3.0), ("prompt", 5.0), ("decoding", 0.5)):
        forecast.begin(phase)
        assert forecast.seconds_left() is None, "no step of a later phase was timed"
        clock.now += seconds
    forecast.begin("decoding")
    assert forecast.seconds_left() is None
    # 9 steps of 0.5 s, and a tenth of all other time: 8.5 s until now and those 4.5 s.
    assert forecast.seconds_left({"timing": 0.1}) == pytest.approx(4.5 + 0.1 * (8.5 + 4.5))
    clock.now += 0.5
    forecast.begin("writing", 0)
    clock.now += 100.0  # of no phase
    forecast.skip("decoding", 8)
    forecast.begin("timing")
    clock.now += 2.0
    forecast.begin("timing")
    assert forecast.seconds_left() == pytest.approx(3 * 2.0)
    forecast.left["timing"] = 1
    assert forecast.seconds_left() == pytest.approx(2.0)


def test_the_last_steps_count_when_the_machine_gets_busy():
    clock = Clock()
    forecast = Forecast({"decoding": 100}, clock)
    for step in range(80):
        forecast.begin("decoding")
        clock.now += 0.1 if step < 80 - LATEST else 3.0
    forecast.begin("decoding")
    assert forecast.seconds_left() == pytest.approx(20 * 3.0)


def test_without_phases_nothing_is_estimated():
    assert Forecast({}).seconds_left() is None


def test_a_comparison_estimates_its_end_and_counts_its_timing(tiny: LoadedModel, tmp_path: Path):
    choices = tuple(MethodChoice(method=method, budget=0.3) for method in ("streaming-llm", "h2o"))
    request = CompareRequest(prompt="Alice was tired of it. " * 3, choices=choices, max_new_tokens=6, level="off")
    told: list[Progress] = []
    compare(request, tmp_path, loaded=tiny, progress=told.append)
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert told[-1].done == told[-1].total
    timing = [one.done for one in told if one.stage.startswith("timing")]
    assert timing[0] < told[-1].total, "timing is part of the work"
    assert all(one.expected_end is None for one in told if one.stage == "prompt")
    assert all(one.expected_end is not None for one in told if one.stage.startswith("timing"))


def _status(expected_end: float | None) -> JobStatus:
    progress = Progress(stage="decoding", done=9, total=10, expected_end=expected_end)
    return JobStatus.model_construct(progress=progress, elapsed=90.0)


def test_the_page_counts_down_to_the_estimated_end():
    assert words_left(_status(None), 0.9, True, 100.0) == ""
    assert words_left(_status(108.0), 0.9, True, 100.0) == "about 8 s left"
    assert words_left(_status(108.0), 0.9, True, 105.0) == "about 3 s left"
    assert words_left(_status(108.0), 0.9, True, 109.0) == "longer than estimated"
    assert words_left(_status(None), 0.9, False, 100.0) == "about 10 s left"
    assert words_left(_status(None), 0.01, False, 100.0) == ""
