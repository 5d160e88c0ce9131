"""All tasks by name."""

from __future__ import annotations

from kvlab.plugins.registry import Registry
from kvlab.tasks import (
    arithmetic,
    common_words,
    copy,
    few_shot,
    frequent_words,
    key_value,
    needle,
    needle_multikey,
    needle_multiquery,
    needle_multivalue,
    next_token_kl,
    perplexity,
    variable_tracking,
)
from kvlab.tasks.task import Task

_MODULES = (
    needle,
    needle_multikey,
    needle_multivalue,
    needle_multiquery,
    variable_tracking,
    common_words,
    frequent_words,
    key_value,
    copy,
    few_shot,
    arithmetic,
    perplexity,
    next_token_kl,
)

TASKS: Registry[Task] = Registry("task", {module.TASK.name: module.TASK for module in _MODULES})


def register_task(task: Task) -> Task:
    """Register a task under its name; raises UserError if the name is taken."""
    TASKS.add(task.name, task)
    return task


def get_task(name: str) -> Task:
    """Return the named task; raises UserError listing the known ones."""
    if name not in TASKS:
        raise TASKS.unknown(name)
    return TASKS[name]
