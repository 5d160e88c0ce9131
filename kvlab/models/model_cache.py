"""The one model a process holds: kept from one request to the next, and gone before another is loaded."""

from __future__ import annotations

import gc

from kvlab.models.downloads import Report
from kvlab.models.load import LoadedModel, load_model
from kvlab.models.placement import empty_device_cache
from kvlab.requests.compare import ModelRequest

_held: dict[tuple[object, ...], LoadedModel] = {}


def held_model(request: ModelRequest, report: Report | None = None) -> LoadedModel:
    """The model a request names, as it is held or newly loaded; `report` is told how far a download is.

    Two never lie in memory together, also not where loading the second fails. Raises UserError as `load_model`.
    """
    key = (request.model, *request.loading.items())
    if key not in _held:
        drop_model()
        _held[key] = load_model(request.model, **request.loading, report=report)
    return _held[key]


def drop_model() -> None:
    """Let go of the model, and give its memory back to the device."""
    _held.clear()
    gc.collect()  # modules and hooks refer to each other
    empty_device_cache()
