"""Parts of a request that its model refuses: methods fitted to another model, tasks that prompts are too short for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kvlab.core.errors import UserError
from kvlab.evaluate.harness import cache_maker
from kvlab.evaluate.plan import make_plan
from kvlab.evaluate.request import EvalRequest
from kvlab.models.load import held_model
from kvlab.models.tokenizer import window_of
from kvlab.requests.compare import CompareRequest

Request = TypeVar("Request", CompareRequest, EvalRequest)


def without_refused(request: Request) -> tuple[Request, tuple[str, ...]]:
    """The request without refused methods and tasks, and their names.

    A request that would keep no method or no task is returned as it is, with no names. Loads the model; raises
    UserError if that fails.
    """
    loaded = held_model(request)
    make_cache = cache_maker(loaded)
    kept: dict[str, tuple[object, ...]] = {
        "choices": tuple(choice for choice in request.choices if _accepts(partial(make_cache, choice)))
    }
    names = [choice.method for choice in request.choices if choice not in kept["choices"]]
    if isinstance(request, EvalRequest):
        plan = partial(make_plan, tokenizer=loaded.tokenizer, window=window_of(loaded.model.config))
        alone = [request.model_copy(update={"tasks": (task,), "files": ()}) for task in request.tasks]
        kept["tasks"] = tuple(one.tasks[0] for one in alone if _accepts(partial(plan, one)))
        names += [task.task for task in request.tasks if task not in kept["tasks"]]
    if not names or not all(kept.values()):
        return request, ()
    return request.model_copy(update=kept), tuple(dict.fromkeys(names))


def _accepts(make: Callable[[], object]) -> bool:
    try:
        make()
    except UserError:
        return False
    return True
