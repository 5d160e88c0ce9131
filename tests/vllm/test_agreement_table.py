"""The measured table: rows replace their older selves, and what breaks is said below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.common.errors import UserError
from kvlab.vllm.agreement import NATIVE, Agreement
from kvlab.vllm.agreement_table import BEGIN, add_agreements, read_agreements, with_agreements

ROW = Agreement("mini", "h2o", "batch", 10, 10, 10, 1.0, "3 were preempted")
BROKEN = Agreement("mini", "h2o", "next turn", 10, 4, 7, 0.9, "6: pages are stale; 10 took pages from the prefix cache")


def test_a_row_replaces_its_older_self(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    assert read_agreements(file) == []
    add_agreements([ROW, BROKEN], file)
    better = replace(ROW, slots=9)
    assert add_agreements([better], file) == [better, BROKEN] == read_agreements(file)


def test_the_document_has_cells_and_reasons() -> None:
    text = f"before\n{BEGIN}\nold\n<!-- end -->\nafter"
    native = replace(ROW, method="full", situation=NATIVE, slots=0)
    made = with_agreements(text, [native, ROW, BROKEN])
    assert made.startswith("before") and made.endswith("after") and "old" not in made
    assert "| h2o | 10 of 10 | 4 / 7 of 10 |" in made
    assert "- next turn: pages are stale (h2o 6)." in made
    assert "10 of 10 texts are those of kvlab's full cache" in made


def test_a_damaged_file_and_a_document_without_marks(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("model,method\nmini,h2o\n")
    with pytest.raises(UserError, match="delete it and measure again"):
        read_agreements(file)
    with pytest.raises(UserError, match="has no lines"):
        with_agreements("no marks", [ROW])
