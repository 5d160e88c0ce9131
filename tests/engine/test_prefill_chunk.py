"""A recorded run whose prompt comes in chunks is the run of the whole prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine import compare
from kvlab.requests.compare import CompareRequest
from kvlab.trace import Run, open_run

PROMPT = "The quick brown fox jumps over the lazy dog, and then the dog sleeps in the sun. " * 2


def recorded(folder: Path, root: Path, method: str, chunk: int | None) -> Run:
    request = CompareRequest(
        prompt=PROMPT,
        model=str(folder),
        choices=(MethodChoice(method=method, budget=0.3),),
        max_new_tokens=4,
        prefill_chunk=chunk,
    )
    return open_run(compare(request, root)[0])


@pytest.mark.parametrize("method", ["h2o", "keepkv", "adakv"])
def test_what_is_recorded_is_the_same(tiny_model_folder: Path, tmp_path: Path, method: str) -> None:
    whole = recorded(tiny_model_folder, tmp_path / "whole", method, None)
    chunked = recorded(tiny_model_folder, tmp_path / "chunked", method, 50)
    assert whole.tokens["id"].tolist() == chunked.tokens["id"].tolist()
    for table, columns in (
        ("tokens", ["logprob", "kl"]),
        ("steps", ["live_slots", "kept_mass", "regret", "output_error"]),
    ):
        for name in columns:
            given, expected = (getattr(run, table)[name].to_numpy(dtype=float) for run in (chunked, whole))
            np.testing.assert_allclose(given, expected, rtol=1e-3, atol=1e-4, err_msg=f"{table}.{name}")
    names = ["step", "layer", "head", "source", "target"]
    given, expected = (run.events[names].sort_values(names).to_numpy() for run in (chunked, whole))
    assert (given == expected).all()


def test_a_method_that_cannot_says_so_before_anything_is_written(tiny_model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hidden states of the whole prompt"):
        recorded(tiny_model_folder, tmp_path, "gvote", 50)
    assert not list(tmp_path.iterdir())
