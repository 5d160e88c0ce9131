"""Every mode gives complete rows: what was measured, its bound, where, and against which full cache. Never a timing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvlab.bench import harness
from kvlab.bench.bench import Bench
from kvlab.bench.competitors import Load, SlotContender
from kvlab.bench.device import Peaks, measure_peaks
from kvlab.bench.models import open_model
from kvlab.bench.modes import MEASURE
from kvlab.bench.request import make_request
from kvlab.bench.rows import SCHEMA, ResultFile, Row, read_rows
from kvlab.core.choice import MethodChoice
from kvlab.models.info.size import find_shape

CHOICES = (MethodChoice(method="h2o", budget=0.25), MethodChoice(method="keepkv", budget=16))


def measured(bench: Bench) -> list[Row]:
    return list(MEASURE[bench.request.mode](bench))


@pytest.mark.parametrize("mode", [mode for mode in MEASURE if mode != "together"])
def test_rows_are_complete(mode: str, bench) -> None:
    rows = measured(bench(mode=mode, choices=CHOICES, new_tokens=6))
    assert {"h2o", "keepkv"} <= {row.method for row in rows}
    for row in rows:
        assert row.mode == mode
        assert row.unit
        assert row.batch == 1
        assert row.context >= 16
        if row.status == "ok":
            assert row.median is not None
            assert row.iqr is not None
            assert row.repeats >= 1
            assert row.iqr >= 0
        else:
            assert row.note
        if row.method in ("h2o", "keepkv"):
            assert (row.budget, row.budget_unit) == ((0.25, "fraction") if row.method == "h2o" else (16, "slots"))
    json.dumps([row.median for row in rows])


def test_together_measures_whole_comparisons_and_their_ratios(tiny_model_folder: Path) -> None:
    model = open_model(str(tiny_model_folder), device="cpu")
    request = make_request(mode="together", choices=CHOICES, contexts=(150,), new_tokens=3, repeats=1, device="cpu")
    rows = measured(Bench(model, request, Peaks(1e9, 1e9)))
    seconds = {row.figure: row.median for row in rows if row.unit == "s"}
    ratios = {row.figure: row.median for row in rows if row.unit == "ratio"}
    assert len(seconds) == 7 and len(ratios) == 4
    for name, ratio in ratios.items():
        own, other = name.split(" / ")
        assert ratio == pytest.approx(seconds[own] / seconds[other])


def test_together_takes_the_tokenizer_of_mini_for_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(find_shape("tiny"), vocab_size=4096)  # as many rows as that tokenizer has tokens
    monkeypatch.setattr("kvlab.bench.models.find_shape", lambda name, scale: shape)
    model = open_model("shape:tiny", device="cpu")
    request = make_request(mode="together", choices=CHOICES[:1], contexts=(150,), new_tokens=2, device="cpu", repeats=1)
    rows = measured(Bench(model, request, Peaks(1e9, 1e9)))
    assert len(rows) == 11 and all(row.median > 0 for row in rows)


@pytest.mark.parametrize(
    ("mode", "figure"), [("decode", "decode rate"), ("prefill", "prefill"), ("generate", "request")]
)
def test_one_full_cache_is_the_baseline_and_it_is_the_best(mode: str, figure: str, bench) -> None:
    rows = [row for row in measured(bench(mode=mode, choices=CHOICES, new_tokens=4)) if row.figure == figure]
    full = [row for row in rows if row.method.startswith("full")]
    assert {row.method for row in full} == {"full: kvlab", "full: transformers sdpa"}
    (best,) = [row for row in full if row.is_full]
    assert best.ratio_to_full == pytest.approx(1)
    if figure == "decode rate":
        assert all(row.ratio_to_full <= 1 + 1e-9 for row in full)
    else:
        assert all(row.ratio_to_full >= 1 - 1e-9 for row in full)
    for row in rows:
        assert row.bound > 0
        assert row.fraction_of_bound > 0


def test_the_bound_of_a_step_is_weights_and_live_cache_over_bandwidth(bench, tiny) -> None:
    rows = measured(bench(mode="decode", choices=CHOICES, warmup=0, steps=1, repeats=1))
    step = {row.method: row for row in rows if row.figure == "decode step"}
    plain = tiny.bytes_per_pass + 96 * tiny.token_bytes
    assert step["full: transformers sdpa"].bound == pytest.approx(1e3 * plain / 1e9)
    assert step["h2o"].bound < step["full: transformers sdpa"].bound
    rate = next(row for row in rows if row.method == "h2o" and row.figure == "decode rate")
    assert rate.bound == pytest.approx(1e3 / step["h2o"].bound)
    assert rate.fraction_of_bound == pytest.approx(step["h2o"].fraction_of_bound)


def test_memory_rows_say_what_the_tensors_say(bench, tiny) -> None:
    rows = {(row.method, row.figure): row for row in measured(bench(mode="memory", choices=CHOICES))}
    plain = rows["full: transformers sdpa", "allocated bytes"]
    assert plain.median == 97 * tiny.token_bytes
    for method, slots in (("h2o", 24), ("keepkv", 16)):
        assert rows[method, "logical tokens"].median == 97
        assert rows[method, "slots held"].median == slots
        allocated, live = rows[method, "allocated bytes"], rows[method, "live bytes"]
        assert live.median <= allocated.median < plain.median
        assert allocated.bound == slots * tiny.token_bytes
        assert rows[method, "weights and cache"].median >= tiny.weight_bytes + allocated.median
    assert rows["h2o", "allocator: peak with weights"].status == "skipped"


def test_memory_after_a_real_prompt_and_new_tokens(bench) -> None:
    rows = measured(bench(mode="memory", choices=CHOICES, fill="prefill", new_tokens=9))
    assert {row.median for row in rows if row.figure == "logical tokens"} == {96.0 + 9}


def test_memory_that_runs_out_is_a_row_in_every_mode(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise MemoryError("needs 9.0 GiB, 1.0 GiB may be used")

    monkeypatch.setattr("kvlab.bench.competitors.make_cache", no_room)
    for mode in (mode for mode in MEASURE if mode != "together"):
        rows = measured(bench(mode=mode, choices=CHOICES[:1], new_tokens=4))
        own = [row for row in rows if row.method == "h2o"]
        assert own, mode
        assert all(row.status == "oom" and row.median is None and "9.0 GiB" in row.note for row in own), mode


def test_every_repeat_holds_the_same_number_of_decisions(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}
    step = SlotContender.step

    def counted(self: SlotContender) -> None:
        made[self.label] = made.get(self.label, 0) + 1
        step(self)

    monkeypatch.setattr(SlotContender, "step", counted)
    rows = measured(bench(mode="decode", choices=CHOICES[:1], compress_every=4, steps=6, repeats=3, warmup=1))
    assert made["h2o"] == 4 + 3 * 8
    assert {row.repeats for row in rows} == {3}


def test_requests_run_in_order_and_share_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = harness.open_model
    monkeypatch.setattr(harness, "open_model", lambda name, **o: opened.append((name, o["scale"])) or real(name, **o))
    fields = {"model": "shape:tiny", "device": "cpu", "contexts": (32,), "repeats": 1, "steps": 1, "choices": CHOICES}
    requests = [make_request(mode=mode, **fields) for mode in ("memory", "decode")]
    said: list[str] = []
    rows = list(harness.run_requests(requests, listener=lambda stage, *_: said.append(stage)))
    assert opened == [("shape:tiny", 1)]
    assert said == ["memory shape:tiny", "decode shape:tiny"]
    for row in rows:
        assert row.device.startswith("cpu")
        assert {"torch", "transformers", "kvlab", "python"} <= set(json.loads(row.versions))
        assert row.timestamp
        assert row.dtype == "float32"


def test_a_model_that_does_not_fit_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_big(*_: object, **__: object) -> None:
        raise MemoryError("needs 99.0 GiB")

    monkeypatch.setattr(harness, "open_model", too_big)
    rows = list(harness.run_requests([make_request(mode="decode", model="shape:tiny", device="cpu", choices=CHOICES)]))
    assert [(row.status, row.method) for row in rows] == [("oom", "h2o"), ("oom", "keepkv")]
    assert "99.0 GiB" in rows[0].note


def test_peaks_are_rates() -> None:
    found = measure_peaks(torch.device("cpu"), torch.float32)
    assert isinstance(found, Peaks)
    assert found.bytes_per_second > 1e6
    assert found.flops_per_second > 1e6


def test_the_file_holds_every_row_at_any_time(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield Row("decode", "decode rate", "m", "h2o", 1, 8, "tokens/s", budget=0.2, median=3.0, is_full=True)
        yield Row("decode", "decode rate", "m", "full", 1, 8, "tokens/s", status="oom", note="no")

    file = ResultFile(tmp_path / "new" / "result.parquet")
    for count, row in enumerate(rows(), 1):
        file.add([row])
        assert read_rows(file.path) == list(rows())[:count]
    assert {"mode", "model", "method", "budget", "batch", "context", "repeats", "median", "iqr", "unit", "bound",
            "fraction_of_bound", "status", "device", "versions", "timestamp"} <= set(SCHEMA.names)  # fmt: skip


def test_prompts_in_chunks_hold_the_same_bytes_or_say_why_not(bench) -> None:
    fields = {"mode": "memory", "fill": "prefill", "choices": (*CHOICES, MethodChoice(method="gvote"))}
    whole, chunked = measured(bench(**fields)), measured(bench(**fields, prefill_chunk=40))
    peak, others = "peak bytes", [[row for row in rows if row.method != "gvote"] for rows in (chunked, whole)]
    same = [[row for row in rows if row.figure != peak] for rows in others]
    assert same[0] == same[1]
    in_chunks, at_once = ([row.median for row in rows if row.figure == peak] for rows in others)
    # Until the last chunk has come, no layer is compressed.
    assert in_chunks and all(a > b for a, b in zip(in_chunks, at_once, strict=True) if a != b) and in_chunks != at_once
    (refused,) = [row for row in chunked if row.method == "gvote"]
    assert refused.status == "skipped"
    assert "hidden states of the whole prompt" in refused.note


def test_captured_steps_are_told(bench) -> None:
    asked = {"choices": CHOICES, "capture": "on", "compress_every": 2}
    rows = {r.method: r for r in measured(bench(mode="decode", **asked)) if r.figure == "decode step"}
    assert rows["h2o"].note == rows["keepkv"].note == "captured steps"
    assert rows["full: kvlab"].note == "not captured: its table grows"
    assert rows["full: transformers sdpa"].note == ""


def test_a_merging_step_is_compared_with_eviction_of_the_same_budget_round_by_round(bench) -> None:
    alike = tuple(MethodChoice(method=name, budget=16) for name in ("h2o", "keepkv", "streaming-llm"))
    found = [r for r in measured(bench(mode="decode", choices=alike)) if r.unit == "ratio"]
    assert [(r.method, r.repeats) for r in found] == [("keepkv", 2)]
    assert found[0].median > 0
    assert not [r for r in measured(bench(mode="decode", choices=CHOICES)) if r.unit == "ratio"], "other budgets"


def test_decode_times_the_attention_of_sparse_attention_beside_dense_attention(bench) -> None:
    reads = {"read": "quest", "page": 4, "dense_layers": 0, "read_share": 0.25}
    sparse = MethodChoice(method="sparse", budget=1.0, hyper_parameters=reads)
    made = bench(mode="decode", choices=(*CHOICES, sparse))
    rows = [row for row in measured(made) if row.figure.startswith("attention of a step")]
    name = "sparse:read=quest:page=4:dense_layers=0:read_share=0.25"
    assert [(row.figure, row.method, row.unit) for row in rows] == [
        ("attention of a step", "full: torch attention", "ms/token"),
        ("attention of a step", name, "ms/token"),
        ("attention of a step / dense", name, "ratio"),
    ]
    assert all(row.median is not None and row.median > 0 for row in rows)
    assert not [row for row in measured(bench(mode="decode", choices=CHOICES)) if "attention" in row.figure]


def test_a_step_moves_the_bytes_that_sparse_attention_reads(bench) -> None:
    quiet = bench(mode="decode", choices=CHOICES)
    load = Load(1, 96)
    half, whole = (
        SlotContender(
            quiet.model, load, quiet.request, MethodChoice(method="sparse", budget=1.0, hyper_parameters=given)
        )
        for given in ({"read": "oracle-topk", "read_share": 0.5}, {})
    )
    for racer in (half, whole):
        with racer.at_work():
            racer.prepare()
            racer.step()
    assert 0.45 * whole.live_bytes < half.live_bytes < 0.55 * whole.live_bytes
