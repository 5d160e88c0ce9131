"""An evaluation reads a prompt once for all choices; a method that raises ends alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvlab.core.methods.eviction.keydiff import UnusualKeys
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.results.rows import ResultStore
from kvlab.models.load import LoadedModel
from tests.evaluation.test_harness import request


def passes(tiny: LoadedModel, wanted: Any, folder: Path) -> list[tuple[int, int]]:
    """Shapes of the model's passes during an evaluation."""
    seen: list[tuple[int, int]] = []
    hook = tiny.model.register_forward_pre_hook(
        lambda module, given, named: seen.append(tuple(given[0].shape)), with_kwargs=True
    )
    try:
        evaluate(wanted, folder, loaded=tiny)
    finally:
        hook.remove()
    return seen


def test_a_prompt_is_read_once_for_all_choices(tiny: LoadedModel, tmp_path: Path) -> None:
    wanted = request(tasks="needle", samples=2, methods="h2o,snapkv,keepkv", budgets="0.2,0.4", question_aware="no")
    seen = passes(tiny, wanted, tmp_path)
    rows = len(wanted.all_choices)
    contexts = [shape for shape in seen if shape[0] == 1 and shape[1] > 20]
    assert len(contexts) == 2, "one pass over the context of each prompt"
    assert max(shape[0] for shape in seen) == rows, "the question and the answers are rows of one batch"


def test_a_forced_text_runs_beside_the_full_cache_once(tiny: LoadedModel, tmp_path: Path) -> None:
    wanted = request(tasks="next_token_kl:continuation=8", samples=1, methods="h2o,snapkv", budgets="0.2,0.4")
    seen = passes(tiny, wanted, tmp_path)
    assert sum(shape[1] > 1 for shape in seen) == 1
    assert {shape[0] for shape in seen if shape[1] == 1} == {len(wanted.all_choices)}


@pytest.mark.parametrize("tasks", ["needle", "next_token_kl:continuation=8"])
@pytest.mark.parametrize("methods", ["h2o,snapkv", "h2o,keydiff:block=16"])
def test_a_method_that_raises_ends_alone_and_the_others_are_measured_to_the_end(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str, methods: str
) -> None:
    """In a pass with others, or in a pass of its own."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a broken score")

    wanted = request(tasks=tasks, samples=2, methods=methods, budgets="0.3")
    with monkeypatch.context() as patched:
        for scorer in (WindowAttention, UnusualKeys):
            patched.setattr(scorer, "update", broken)
        with pytest.raises(ZeroDivisionError, match="a broken score"):
            evaluate(wanted, tmp_path, loaded=tiny)
    kept = ResultStore(tmp_path).frame()
    assert sorted(kept["method"]) == ["full", "full", "h2o", "h2o"]
    whole = evaluate(wanted, tmp_path, loaded=tiny).rows
    assert len(whole) == 6, "measured again once it works"
