"""What would fail after the start is told before it."""

from __future__ import annotations

import pytest

from kvlab.forms.plan_preview import run_notes
from kvlab.planning.choices import MethodEntry, methods

pytestmark = pytest.mark.usefixtures("commands_here")


def entries(*names: str) -> list[MethodEntry]:
    return [entry for entry in methods() if entry.name in names]


def test_a_window_that_is_the_budget_and_a_chunk_below_it_are_told():
    (note,) = run_notes(100, "mini", entries("snapkv", "h2o"), "20%", {})
    assert "nothing else, as a local window does" in note
    (note,) = run_notes(1000, "mini", entries("snapkv", "h2o"), "20%", {}, chunk=8)
    assert note.startswith("SnapKV needs the last 32 tokens of the prompt in one pass")
    assert run_notes(1000, "mini", entries("snapkv", "h2o"), "20%", {}, chunk=64) == []
    assert run_notes(1000, "mini", entries("snapkv"), "no budget", {}) == []


def test_a_method_without_a_file_fitted_to_the_model_is_told():
    chosen = entries("less", "h2o")
    assert run_notes(1000, "mini", chosen, "20%", {}) == []
    (note,) = run_notes(1000, "some/model", chosen, "20%", {})
    assert note.startswith("LESS has no file fitted to ")
    typed = {"less": {"weights": "untrained"}}
    assert run_notes(1000, "some/model", chosen, "20%", typed) == []
