"""The model loaded in this process, kept between requests and freed before another is loaded."""

from __future__ import annotations

import gc

from kvlab.models.downloads import Report
from kvlab.models.load import LoadedModel, load_model
from kvlab.models.placement import empty_device_cache
from kvlab.requests.compare import ModelRequest

_held: dict[tuple[object, ...], LoadedModel] = {}


def held_model(request: ModelRequest, report: Report | None = None) -> LoadedModel:
    """The model a request names, cached or newly loaded; `report` gets download progress.

    Two models are never in memory together, even if loading the second fails. Raises UserError as `load_model`.
    """
    key = (request.model, *request.loading.items())
    if key not in _held:
        drop_model()
        _held[key] = load_model(request.model, **request.loading, report=report)
    return _held[key]


def drop_model() -> None:
    """Free the model and its device memory."""
    _held.clear()
    gc.collect()  # modules and hooks form reference cycles
    empty_device_cache()
