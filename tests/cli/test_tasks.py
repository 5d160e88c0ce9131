"""`kvlab tasks` and the list that the dashboard makes of it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from kvlab.cli.tasks import tasks
from kvlab.core.errors import UserError
from kvlab.planning import choices as listed_tasks
from kvlab.tasks.loaders import LOADERS
from kvlab.tasks.registry import TASKS

app = typer.Typer()
app.command()(tasks)


def test_every_task_and_format_is_listed(monkeypatch: pytest.MonkeyPatch):
    printed = CliRunner().invoke(app, ["--json"]).stdout
    monkeypatch.setattr(listed_tasks, "ask", lambda what: json.loads(printed))
    listed = listed_tasks._read("tasks")
    assert [task.name for task in listed.tasks] == list(TASKS)
    assert listed.formats == tuple(LOADERS)
    for task in listed.tasks:
        assert task.parameters == TASKS[task.name].parameters and task.lengths == TASKS[task.name].lengths
    table = CliRunner().invoke(app, []).stdout
    assert all(name in table for name in TASKS)


def test_a_list_that_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listed_tasks, "ask", lambda what: {"tasks": 3})
    with pytest.raises(UserError, match="printed no list of tasks"):
        listed_tasks._read("tasks")
