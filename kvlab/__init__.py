"""kvlab: a visual laboratory for KV-cache compression in LLM inference.

The names below are loaded when first used, so that reading a run needs no model stack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvlab.core.plugins import moved_modules

if TYPE_CHECKING:
    from kvlab.core.cache.factory import attach, detach, make_cache
    from kvlab.core.errors import UserError
    from kvlab.core.methods.composition.composed import compose
    from kvlab.core.methods.spec import list_methods
    from kvlab.engine import run
    from kvlab.engine.prefix import Prefix
    from kvlab.models.load import load_model
    from kvlab.notebook import compare, evaluate, open_folder, open_run
    from kvlab.results.risk.safe_budget import safe_budget

__version__ = "0.1.0"

__all__ = [
    "Prefix",
    "UserError",
    "attach",
    "compare",
    "compose",
    "detach",
    "evaluate",
    "list_methods",
    "load_model",
    "make_cache",
    "open_folder",
    "open_run",
    "run",
    "safe_budget",
]

_HOME = {
    "Prefix": "kvlab.engine.prefix",
    "UserError": "kvlab.core.errors",
    "attach": "kvlab.core.cache.factory",
    "compare": "kvlab.notebook",
    "compose": "kvlab.core.methods.composition.composed",
    "detach": "kvlab.core.cache.factory",
    "evaluate": "kvlab.notebook",
    "list_methods": "kvlab.core.methods.spec",
    "load_model": "kvlab.models.load",
    "make_cache": "kvlab.core.cache.factory",
    "open_folder": "kvlab.notebook",
    "open_run": "kvlab.notebook",
    "run": "kvlab.engine",
    "safe_budget": "kvlab.results.risk.safe_budget",
}

moved_modules.install()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvlab' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "kvlab":
            raise
        # `AttributeError` would hide the reason: tools that look for attributes swallow it.
        raise ImportError(f"kvlab.{name} needs {error.name}: pip install 'kvlab[lab]'.") from error
