"""The page that says how each task is scored has all of them."""

from __future__ import annotations

import re
from pathlib import Path

from kvlab.tasks.registry import TASKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"


def test_every_task_is_on_the_page_with_its_name_in_ruler() -> None:
    _, table = PAGE.read_text(encoding="utf-8").split("| task | prompt | score |\n", 1)
    lines = [line for line in table.split("\n\n", 1)[0].splitlines() if line.startswith("| `")]
    named = [name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == sorted(TASKS)
    text = "\n".join(line.split("|")[1] for line in lines)
    assert all(f"`{task.name}` ({task.ruler})" in text for task in TASKS.values() if task.ruler)
