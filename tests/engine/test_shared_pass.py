"""The runs of a comparison share one pass over the prompt and one decode loop, and one broken method ends alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.contract.pipeline import LowestScore
from kvlab.core.methods.eviction.keydiff import UnusualKeys
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.engine.compare import Group, compare, groups_of, most_together
from kvlab.engine.prepare import prepare
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import CompareRequest, RecordLevel
from kvlab.trace import Run, open_run

PROMPT = "The harbour lamp was lit at seven, and the old captain counted the boats as they came in. " * 2
METHODS = ("h2o", "keepkv", "snapkv", "kvzip", "adakv")
LEVELS: tuple[RecordLevel, ...] = ("light", "full")
EXACT = ["step", "layer", "head", "kind", "source", "target"]


@pytest.fixture(scope="module")
def loaded(tiny_model_folder: Path) -> LoadedModel:
    return load_model(str(tiny_model_folder), "cpu", "float32")


def request(*methods: str, **fields: Any) -> CompareRequest:
    choices = tuple(MethodChoice(method=method, budget=0.3) for method in methods)
    return CompareRequest(**({"prompt": PROMPT, "choices": choices, "max_new_tokens": 8} | fields))


def opened(paths: list[Path]) -> dict[str, Run]:
    return {run.record.method: run for run in map(open_run, paths)}


def test_every_run_is_what_it_is_alone(loaded: LoadedModel, tmp_path: Path) -> None:
    together = opened(compare(request(*METHODS), tmp_path / "together", loaded=loaded))
    for method in METHODS:
        alone = opened(compare(request(method), tmp_path / method, loaded=loaded))[method]
        run = together[method]
        pd.testing.assert_frame_equal(run.events[EXACT], alone.events[EXACT])
        pd.testing.assert_frame_equal(run.select("memory"), alone.select("memory"))
        for table in ("steps", "tokens"):
            pd.testing.assert_frame_equal(run.select(table), alone.select(table), rtol=1e-3, atol=1e-4)
        assert run.record.free_text == alone.record.free_text


def test_counts_and_sizes_are_those_of_one_text(loaded: LoadedModel, tmp_path: Path) -> None:
    """At level `light` a method's own text is a second row of its cache, at level `full` a copy."""
    light, full = (opened(compare(request(*METHODS, level=level), tmp_path / level, loaded=loaded)) for level in LEVELS)
    for method, run in light.items():
        assert run.record.free_text == full[method].record.free_text
        for table in ("steps", "memory"):
            counted = run.select(table).dropna(axis=1, how="all")
            pd.testing.assert_frame_equal(counted, full[method].select(table)[counted.columns], check_dtype=False)
    texts = {run.record.free_text for run in light.values()}
    assert len(texts) > 2, "some methods write texts of their own"


def test_the_prompt_is_read_once_and_every_step_runs_once(loaded: LoadedModel, tmp_path: Path) -> None:
    passes: list[tuple[int, int]] = []
    hook = loaded.model.register_forward_pre_hook(
        lambda module, given, named: passes.append(tuple(given[0].shape)), with_kwargs=True
    )
    try:
        methods = ("h2o", "keepkv", "snapkv", "adakv", "zsmerge")
        runs = compare(request(*methods, level="light"), tmp_path, loaded=loaded)
    finally:
        hook.remove()
    prompts = [shape for shape in passes if shape[1] > 1]
    assert prompts == [(1, open_run(runs[0]).record.prompt_tokens)]
    steps = passes[1 : passes.index((1, 1), 1)] if (1, 1) in passes[1:] else passes[1:]
    assert len(steps) <= 7 and steps[0][0] >= len(methods) + 1, "all rows of a step are one batch"


def test_a_method_that_raises_on_the_prompt_ends_alone(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a broken score")

    monkeypatch.setattr(WindowAttention, "update", broken)
    with pytest.raises(ZeroDivisionError, match="a broken score"):
        compare(request("h2o", "snapkv", "keepkv"), tmp_path, loaded=loaded)
    runs = opened([file.parent for file in tmp_path.glob("*/run.json")])
    states = {method: run.record.status for method, run in runs.items()}
    assert states == {"full": "complete", "h2o": "complete", "snapkv": "failed", "keepkv": "complete"}
    assert runs["snapkv"].record.message == "a broken score"
    assert runs["keepkv"].record.decode_tokens_per_second, "the others are timed too"


def test_a_method_that_raises_while_decoding_ends_alone(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victims = LowestScore.victims

    def broken(self: LowestScore, view: Any, *rest: Any) -> Any:
        if view.phase == "decode":
            raise ZeroDivisionError("a broken step")
        return victims(self, view, *rest)

    monkeypatch.setattr(LowestScore, "victims", broken)
    with pytest.raises(ZeroDivisionError, match="a broken step"):
        compare(request("h2o", "snapkv"), tmp_path, loaded=loaded)
    runs = opened([file.parent for file in tmp_path.glob("*/run.json")])
    assert {method: run.record.status for method, run in runs.items()} == {
        "full": "complete", "h2o": "failed", "snapkv": "complete",
    }  # fmt: skip
    tokens = runs["snapkv"].tokens
    assert np.isfinite(tokens.loc[tokens["phase"] == "forced", "kl"]).all()


def test_a_run_that_fails_alone_does_not_end_the_others(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a broken block")

    monkeypatch.setattr(UnusualKeys, "update", broken)
    blocks = [MethodChoice(method="keydiff", budget=0.3, hyper_parameters={"block": size}) for size in (16, 24)]
    asked = request("h2o")
    with pytest.raises(ZeroDivisionError, match="a broken block"):
        compare(asked.model_copy(update={"choices": (*blocks, *asked.choices)}), tmp_path, loaded=loaded)
    states = [open_run(file.parent).record for file in sorted(tmp_path.glob("*/run.json"))]
    assert [(record.method, record.status) for record in states] == [
        ("full", "complete"), ("keydiff", "failed"), ("keydiff", "failed"), ("h2o", "complete"),
    ]  # fmt: skip


def test_groups_follow_memory_and_methods_that_cannot_share_run_alone(loaded: LoadedModel, tmp_path: Path) -> None:
    blocks = MethodChoice(method="keydiff", budget=0.3, hyper_parameters={"block": 16})
    asked = request("h2o", "snapkv")
    prepared = prepare(asked.model_copy(update={"choices": (*asked.choices, blocks)}), tmp_path, loaded, None)
    assert groups_of(prepared, {}, 10) == [Group((0, 1, 2), True), Group((3,), False)]
    assert groups_of(prepared, {}, 2) == [Group((0, 1), True), Group((2,), False), Group((3,), False)]
    assert groups_of(prepared, {0: tmp_path, 1: tmp_path}, 2) == [Group((2,), True), Group((3,), False)]
    assert groups_of(prepared, dict.fromkeys((0, 1, 2), tmp_path), 2) == [Group((), True), Group((3,), False)]
    assert most_together(prepared) > 3
