"""Tasks and file formats of evaluations as data, read from a second process once."""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, ValidationError

from kvlab.planning.methods import ask, in_background, not_a_list, result_of


class TaskEntry(BaseModel):
    """One task that generates its prompts."""

    model_config = ConfigDict(frozen=True)

    name: str
    summary: str = ""
    parameters: dict[str, int | str] = {}
    choices: dict[str, tuple[str, ...]] = {}  # the words of parameters that are words
    lengths: tuple[int, ...] = ()
    uses_depth: bool = False


class TaskList(BaseModel):
    """All tasks, and the supported formats of prompt files."""

    model_config = ConfigDict(frozen=True)

    tasks: tuple[TaskEntry, ...]
    formats: tuple[str, ...]


def task_list() -> TaskList:
    """The tasks; waits for the first read, which is cached for the life of this process.

    Raises UserError if the command that lists them failed.
    """
    return result_of(_reading)


def prefetch() -> None:
    """Start reading the task list in the background."""
    _reading()


@lru_cache(maxsize=1)
def _reading() -> Future[TaskList]:
    return in_background(_read)


def _read() -> TaskList:
    try:
        return TaskList.model_validate(ask("tasks"))
    except ValidationError as error:
        raise not_a_list("tasks") from error
