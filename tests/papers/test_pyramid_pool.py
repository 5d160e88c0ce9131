"""PyramidPool's figure 4 on tiny recorded runs: what merges is drawn, what keeps one of a window says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.papers.exhibit import Choice, Needs
from kvlab.papers.registry import find
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from kvlab.trace import open_run

PROMPT = "A long time ago an old man and a young man sat on a wall in the sun and spoke of many things. " * 3


@pytest.mark.parametrize("pooling", ["mean", "best"])
def test_windows_are_drawn_where_they_merge(pooling: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    choice = MethodChoice(method="pyramid-pool", budget=0.3, hyper_parameters={"pooling": pooling})
    request = CompareRequest(prompt=PROMPT, model=str(tiny_model_folder), choices=(choice,), max_new_tokens=12)
    runs = tuple(open_run(path) for path in compare(request, tmp_path))
    found = find("pyramid-pool", "fig-4").draw(Sources(root=tmp_path, runs=runs), Choice(), "light")
    if pooling == "best":
        assert isinstance(found, Needs)
        assert "pooling=mean" in command_line(found.measurement)
        return
    assert not isinstance(found, Needs)
    assert found[0].claim is not None
    assert found[0].claim.verdict == "not enough to say"  # it is one prompt
    assert found[0].claim.interval is not None and found[0].claim.interval.mean > 0.5
    last = found[0].frame.query("step == step.max()")
    assert last["tokens"].sum() == runs[-1].steps["tokens_seen"].max(), "every token is in a slot"
