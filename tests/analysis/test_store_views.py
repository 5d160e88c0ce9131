"""What pages and tables show of stores: parts of a layer's bytes, the frontier, bytes beside scores, --store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvlab.cli.compare import StorageOptions
from kvlab.evaluation.results.summary import with_measures
from kvlab.views import memory as cost
from kvlab.views import memory as cost_figures
from kvlab.views import trade_off as figures
from kvlab.views.frames.trade_off import run_points


def memory(codes: float | None) -> pd.DataFrame:
    scales = None if codes is None else 20.0
    return pd.DataFrame(
        {"step": [3], "layer": [0], "live_bytes": [150], "allocated_bytes": [200], "logical_tokens": [10],
         "codes_bytes": [codes], "scales_bytes": [scales]}
    )  # fmt: skip


def record() -> Any:
    return SimpleNamespace(model=SimpleNamespace(num_key_value_heads=1, head_dim=16, dtype="bfloat16"))


def test_parts_of_a_packed_layer_add_up_to_what_is_allocated() -> None:
    table = cost.memory_by_layer(SimpleNamespace(memory=memory(100.0), record=record()), 3)
    assert table[["codes", "scales", "native"]].iloc[0].tolist() == [100, 20, 80]
    bars = [trace.name for trace in cost_figures.layer_bytes(table).data if trace.type == "bar"]
    assert bars == ["codes of quantised slots", "scales", "native slots, metadata and slack"]


@pytest.mark.parametrize("frame", [memory(None), memory(None).drop(columns=["codes_bytes", "scales_bytes"])])
def test_a_native_layer_shows_live_and_empty_bytes(frame: pd.DataFrame) -> None:
    table = cost.memory_by_layer(SimpleNamespace(memory=frame, record=record()), 3)
    bars = [trace.name for trace in cost_figures.layer_bytes(table).data if trace.type == "bar"]
    assert bars == ["live: valid slots", "allocated but empty"]


def test_the_frontier_is_what_no_run_beats_in_both() -> None:
    points = {"full": (100, 0.0), "evict": (20, 0.3), "merge": (22, 0.4), "pack": (30, 0.1), "both": (10, 0.5)}
    rows = [{"label": n, "method": n, "live_bytes": b, "mean_kl": kl, "prompts": 1} for n, (b, kl) in points.items()]
    figure = figures.quality_against_bytes(run_points(pd.DataFrame(rows), [(name, "20 %") for name in points]))
    line = next(trace for trace in figure.data if trace.name == "Pareto frontier")
    assert list(line.y) == [0.5, 0.3, 0.1]


def test_bytes_stand_over_the_full_caches_on_the_same_prompt() -> None:
    prompt = {
        "task": "a", "difficulty": "{}", "content": "", "length": 8, "depth": None, "seed": 0, "question_aware": True,
        "model": "m", "model_digest": "d", "logical_tokens": 8, "slots": 4.0, "score": 1.0,
    }  # fmt: skip
    sizes = {("full", 0): 100, ("full", 1): 200, ("packed", 0): 30, ("packed", 1): 50}
    rows = [prompt | {"method": m, "index": i, "live_bytes": size} for (m, i), size in sizes.items()]
    assert with_measures(pd.DataFrame(rows))["bytes"].tolist() == [1, 1, 0.3, 0.25]


def test_a_store_is_for_all_methods_of_a_command_that_name_none() -> None:
    named = StorageOptions(store="kivi4").added_to("full,snapkv,h2o:decay=0.9,adakv:store=fp8,compose:score=snapkv")
    expected = ["full", "snapkv:store=kivi4", "h2o:decay=0.9:store=kivi4", "adakv:store=fp8",
                "compose:score=snapkv:store=kivi4"]  # fmt: skip
    assert named.split(",") == expected
