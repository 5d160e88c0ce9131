"""Methods that a model refuses, such as one whose learned weights were fitted to another model."""

from __future__ import annotations

from kvlab.common.errors import UserError
from kvlab.evaluate.harness import cache_maker
from kvlab.evaluate.request import EvalRequest
from kvlab.evaluate.results.outcome import CacheMaker
from kvlab.models.load import held_model
from kvlab.requests.compare import CompareRequest, MethodChoice


def refused_choices(request: CompareRequest | EvalRequest) -> list[MethodChoice]:
    """The request's methods for which its model makes no cache. Loads the model; raises UserError if that fails."""
    make = cache_maker(held_model(request))
    return [choice for choice in request.choices if not _accepts(make, choice)]


def _accepts(make: CacheMaker, choice: MethodChoice) -> bool:
    try:
        make(choice)
    except UserError:
        return False
    return True
