"""A slice of `make torture` that takes seconds: each kind of it once, at its smallest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture.commands import LINES, command_cases
from tests.torture.generated import SMALL, generated
from tests.torture.judge import Case, judge
from tests.torture.kills import complete, killed_after
from tests.torture.table import Done, Row, as_markdown, keep

EVERY = 60  # of so many lines one is tried here


def test_lines_from_everywhere_are_refused(tmp_path: Path, tiny_model_folder: Path) -> None:
    cases = list(command_cases(tmp_path, tiny_model_folder))
    lines = [line for line in LINES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert len(cases) == len(lines) > 200
    for case in cases[::EVERY]:
        assert not judge(case).fault, judge(case).line


def test_what_hypothesis_makes_up_is_refused_or_runs() -> None:
    row = generated(50, lambda line: None, pages=False)
    assert row.attempts >= 40
    assert not row.faults


def falls() -> None:
    raise KeyError("no sentence")


@pytest.mark.parametrize(
    ("work", "fault"),
    [(falls, "exception"), (lambda: "nothing was said", "said nothing of it"), (lambda: None, "accepted")],
)
def test_the_judge_sees_what_falls(work: Callable[[], object], fault: str) -> None:
    assert judge(Case("", "", work, must_refuse=True)).fault == fault


def test_the_judge_ends_what_does_not_end() -> None:
    def endless() -> None:
        while True:
            pass

    assert judge(Case("", "", endless), limit=0.2).fault == "does not end"


def test_a_writer_that_is_killed_loses_nothing_that_was_complete(tmp_path: Path) -> None:
    from tests.synthetic.runs import write_synthetic_run

    def write() -> None:
        for number in range(100):
            write_synthetic_run(tmp_path, comparison_id=f"c{number}", **SMALL)

    assert killed_after(0.3, write)
    before = complete(tmp_path)
    assert killed_after(0.01, write)
    assert set(before) <= set(complete(tmp_path)) and not any(complete(tmp_path).values())


def test_the_table_says_what_was_lost_and_a_part_made_again_takes_the_place_of_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    keep(file, "kills", Done([Row("kills", 3, 1, 2, [0.1, 0.2, 9.0], faults=["a run is gone"])]))
    text = as_markdown(keep(file, "disks", Done([Row("disks", 7)])).values())
    assert "| kills | 3 | 1 | 2 | 0.20 | 9.00 | 9.00 |" in text and "a run is gone" in text and "| disks | 7 |" in text
    text = as_markdown(keep(file, "kills", Done([Row("kills", 4)])).values())
    assert "| kills | 4 | 0 | 0 |" in text and "a run is gone" not in text and "| disks | 7 |" in text
