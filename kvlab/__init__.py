"""kvlab: a visual laboratory for KV-cache compression in LLM inference.

The names below are loaded when first used, so that reading a run needs no model stack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvlab.core.plugins import moved_modules

if TYPE_CHECKING:
    from kvlab.core.cache import make_cache
    from kvlab.core.errors import UserError
    from kvlab.core.methods.catalogue import list_methods
    from kvlab.core.methods.composition.composed import compose
    from kvlab.engine import compare, run
    from kvlab.models.load import load_model
    from kvlab.prefix import Prefix
    from kvlab.results.risk.safe_budget import safe_budget
    from kvlab.trace import open_run

__version__ = "0.1.0"

__all__ = [
    "Prefix", "UserError", "compare", "compose", "list_methods", "load_model", "make_cache", "open_run", "run",
    "safe_budget",
]  # fmt: skip

_HOME = {
    "Prefix": "kvlab.prefix",
    "UserError": "kvlab.core.errors",
    "compare": "kvlab.engine",
    "compose": "kvlab.core.methods.composition.composed",
    "load_model": "kvlab.models.load",
    "make_cache": "kvlab.core.cache",
    "list_methods": "kvlab.core.methods.catalogue",
    "open_run": "kvlab.trace",
    "run": "kvlab.engine",
    "safe_budget": "kvlab.results.risk.safe_budget",
}

moved_modules.install()


def __getattr__(name: str) -> Any:
    if name == "methods":  # the older spelling kvlab.core.methods() of list_methods()
        return import_module("kvlab.core.methods")
    if name not in _HOME:
        raise AttributeError(f"module 'kvlab' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
