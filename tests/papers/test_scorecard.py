"""The scorecard counts what ships where a folder's own runs cannot be drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.papers import scorecard as cards
from kvlab.papers.evidence import DiskCache
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.papers.registry import find
from kvlab.papers.scorecard import counts
from kvlab.results.sources import Sources
from kvlab.views.base.palette import Theme


def test_a_run_that_cannot_be_drawn_does_not_end_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was killed: its arrays are not there, and never will be."""
    whole = find("keepkv", "fig-3")

    def draw(sources: Sources, choice: Choice, theme: Theme) -> tuple[Drawn, ...] | Needs:
        if sources.shipped is None:
            raise UserError("The run is still going (or its worker was killed).")
        return whole.drawing(sources, choice, theme)

    monkeypatch.setattr(cards, "EXHIBITS", [whole])
    monkeypatch.setattr(DiskCache, "read", lambda *_: None)
    without_runs = counts(cards.scorecard(tmp_path)["mini"])
    assert without_runs[["holds", "fails", "open"]].to_numpy().sum()
    monkeypatch.setattr(cards, "EXHIBITS", [replace(whole, drawing=draw)])
    assert counts(cards.scorecard(tmp_path)["mini"]).equals(without_runs)
