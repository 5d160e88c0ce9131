"""Out of memory in an evaluation halves the batch; and a checkpoint's habits of generating stay out of it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import kvlab
from kvlab.core.errors import UserError
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.measure import Measurer
from kvlab.evaluation.results.rows import ResultStore
from kvlab.models.load import LoadedModel
from tests.evaluation.one_cache import generate_answers
from tests.evaluation.test_harness import request


def out_of_memory_above(most: int, monkeypatch: pytest.MonkeyPatch, seen: list[int]) -> list[Any]:
    """From now on a batch of more than `most` prompts runs out of memory, with a tensor alive in the failing frame."""
    real, held = Measurer.measure, []

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        taken = torch.zeros(8)
        held.append(weakref.ref(taken))
        seen.append(len(prompts))
        if len(prompts) > most:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    return held


def asked(**changes: Any) -> Any:
    return request(tasks="needle", samples=4, batch_rows=4, **changes)


def test_a_batch_that_does_not_fit_is_halved_and_the_rows_are_the_same(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = evaluate(asked(), tmp_path / "plain", loaded=tiny)
    seen: list[int] = []
    held = out_of_memory_above(1, monkeypatch, seen)
    halved = evaluate(asked(), tmp_path / "halved", loaded=tiny)
    gc.collect()
    assert not any(ref() is not None for ref in held), "what failed is let go of"
    largest = int(plain.rows["batch_rows"].max())
    choices = plain.rows.groupby("index").size().max()
    assert largest == max(seen) * choices and seen.count(max(seen)) == 1, "one that failed is not tried again"
    assert (halved.rows["batch_rows"] == choices).all(), "every prompt is still read once"
    assert plain.rows[["key", "score"]].equals(halved.rows[["key", "score"]])
    assert halved.notes == [*plain.notes, f"The batch size was reduced to {choices} rows because memory ran out."]


def test_one_prompt_alone_that_does_not_fit_is_a_sentence_and_rows_stay(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, counted = Measurer.measure, []

    def measure(self: Measurer, prompts: Any, choices: Any) -> Any:
        counted.append(len(prompts))
        if len(counted) > 1:
            raise RuntimeError("CUDA out of memory")
        return real(self, prompts, choices)

    monkeypatch.setattr(Measurer, "measure", measure)
    asked = request(tasks="needle", samples=2, batch_rows=1)
    with pytest.raises(
        UserError, match=r"ran out of memory on one prompt of [\d,]+ tokens .*--set prefill_chunk"
    ) as error:
        evaluate(asked, tmp_path, loaded=tiny)
    assert "\n" not in str(error.value) and len(ResultStore(tmp_path).keys()) == len(asked.all_choices)


def test_another_error_passes(tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Measurer, "measure", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        evaluate(asked(), tmp_path, loaded=tiny)


@pytest.mark.parametrize(
    "habit",
    [
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": list(range(3, 300))},
        {"min_new_tokens": 8, "num_beams": 3, "length_penalty": 3.0},
    ],
)
def test_a_checkpoints_habits_do_not_reach_the_answers(tiny: LoadedModel, habit: dict[str, Any]) -> None:
    ids = [list(range(3, 60))]

    def answer() -> str:
        return generate_answers(tiny, ids, kvlab.make_cache(tiny, "h2o", 0.4), 57, 12, None)[0].prediction

    before, plain = tiny.model.generation_config, answer()
    own = GenerationConfig(**(before.to_dict() | habit))
    tiny.model.generation_config = own
    try:
        assert answer() == plain
        assert tiny.model.generation_config is own
    finally:
        tiny.model.generation_config = before
