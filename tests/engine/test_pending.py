"""Recording a step leaves its numbers on the device: nothing is read, and nothing is lost when they are."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import PreTrainedModel

from kvlab.checking.properties import NoReading
from kvlab.core.cache import make_cache
from kvlab.core.contract.view import Slots
from kvlab.engine.environment import model_shape
from kvlab.engine.recording.recorder import Recorder
from kvlab.models.load import LoadedModel, prepare
from kvlab.trace import RunWriter
from kvlab.trace.schema import RunRecord
from tests.families import tiny_model

PROMPT, STEPS = 24, 9


@pytest.mark.parametrize("method", ["h2o", "zsmerge", "keepkv", "d2o"])
def test_light_recording_reads_nothing_until_the_writer_flushes(method: str, tmp_path: Path) -> None:
    model = prepare(tiny_model("llama"))
    writer = RunWriter(tmp_path, _record(model, method))
    recorder = Recorder(writer, "light", PROMPT, STEPS)
    cache = make_cache(model, method, 0.3, observer=recorder)
    counted: list[list[list[int]]] = []
    with torch.inference_mode():
        model(torch.randint(3, 97, (1, PROMPT)), past_key_values=cache)
        recorder.end_step(cache)
        for step in range(STEPS):
            counted.append([layer.per_head(Slots.live)[0].tolist() for layer in cache.compressed_layers()])
            forbidden = NoReading() if step > 1 else torch.no_grad()
            token = torch.full((1, 1), 5 + step)
            with forbidden:
                model(token, past_key_values=cache)
                recorder.end_step(cache)
    writer.finish("complete")
    steps = pd.read_parquet(writer.path / "steps")
    assert sorted(steps["step"].unique()) == list(range(STEPS + 1))
    for step, layers in enumerate(counted):
        for layer, heads in enumerate(layers):
            rows = steps[(steps["step"] == step) & (steps["layer"] == layer)].sort_values("head")
            assert rows["live_slots"].tolist() == heads
    memory = pd.read_parquet(writer.path / "memory")
    last = memory[memory["step"] == STEPS].sort_values("layer")
    assert last["live_bytes"].tolist() == [layer.live_bytes for layer in cache.memory().layers]
    assert last["allocated_bytes"].tolist() == [layer.allocated_bytes for layer in cache.memory().layers]
    assert len(memory) == (STEPS + 1) * len(cache.layers)


def _record(model: PreTrainedModel, method: str) -> RunRecord:
    return RunRecord(
        run_id="pending",
        comparison_id="pending",
        created="2026-01-01T00:00:00+00:00",
        status="running",
        prompt="",
        method=method,
        budget=0.3,
        hyper_parameters={},
        label=method,
        level="light",
        max_new_tokens=STEPS,
        compress_every=1,
        seed=0,
        device="cpu",
        model=model_shape(LoadedModel(model, None, "tiny")),
        versions={},
        prompt_tokens=PROMPT,
    )
