"""Tasks and file formats of evaluations as data, read from a second process once."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, ValidationError

from kvlab import __version__
from kvlab.catalogue.methods import SECONDS_ALLOWED, ask
from kvlab.common.errors import UserError


class TaskEntry(BaseModel):
    """One task that generates its prompts."""

    model_config = ConfigDict(frozen=True)

    name: str
    summary: str = ""
    parameters: dict[str, int] = {}
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
    try:
        return _reading(__version__).result(timeout=SECONDS_ALLOWED + 5)
    except (UserError, TimeoutError):
        _reading.cache_clear()  # the next call asks again
        raise


def prefetch() -> None:
    """Start reading in the background."""
    _reading(__version__)


@lru_cache(maxsize=1)
def _reading(_version: str) -> Future[TaskList]:
    executor = ThreadPoolExecutor(1, thread_name_prefix="kvlab-tasks")
    future = executor.submit(_read)
    executor.shutdown(wait=False)
    return future


def _read() -> TaskList:
    try:
        return TaskList.model_validate(ask("tasks"))
    except ValidationError as error:
        raise UserError("`kvlab tasks --json` gave no list of tasks: run it in a terminal to see why.") from error
