"""Compression methods: each decides, and nothing here touches a model or a file.

Importing a method's module registers it, and every module of this folder is imported: first those named here, in the
order in which methods are shown, then any other.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from kvlab.methods.base import Method, make_method, registered

__all__ = ["Method", "make_method", "registered"]

SHOWN = (
    "full", "window", "streaming_llm", "h2o", "snapkv", "pyramidkv", "adakv", "pyramidinfer", "gvote", "tova",
    "keydiff", "lagkv", "kvzip", "duoattention", "attention_matching", "expected_attention", "criticalkv", "rkv",
    "zsmerge", "kvmerger", "pyramid_pool", "cam", "d2o", "less", "keepkv", "exactmerge",
)  # fmt: skip
LAST = "compose"  # made of all the others

_others = sorted({module.name for module in iter_modules(__path__) if not module.ispkg} - {*SHOWN, LAST})
for _name in (*SHOWN, *_others, LAST):
    import_module(f"{__name__}.{_name}")


class _AlsoTheCatalogue(ModuleType):
    """Python puts this package over the function `kvlab.methods()`, so calling it does what that does."""

    def __call__(self) -> Any:
        from kvlab.catalogue import methods

        return methods()


sys.modules[__name__].__class__ = _AlsoTheCatalogue
