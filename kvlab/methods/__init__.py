"""Compression methods: each decides, and nothing here touches a model or a file.

A method is a file in the folder that says what becomes of what must go (`eviction`, `merging`; `whole`: nothing must).
Importing it registers it, and every module of these folders and of this one is imported: first those named here, in
the order in which methods are shown, then any other.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from kvlab.methods.base import Method, make_method, registered

__all__ = ["Method", "make_method", "registered"]

SHOWN = (
    "full", "packed", "window", "streaming_llm", "h2o", "snapkv", "pyramidkv", "adakv", "pyramidinfer", "gvote", "tova",
    "keydiff", "key_norm", "lagkv", "kvzip", "kvzap", "duoattention", "attention_matching", "expected_attention",
    "criticalkv", "rkv", "chunkkv", "zsmerge", "kvmerger", "pyramid_pool", "cam", "d2o", "less", "keepkv",
    "simcalkv", "grkv", "asymkv", "kvslimmer", "semanticache", "exactmerge", "exactmerge2",
)  # fmt: skip
FOLDERS = ("", "eviction.", "merging.", "whole.")
LAST = "compose"  # made of all the others

_homes = {
    module.name: f"{__name__}.{folder}{module.name}"
    for folder in FOLDERS
    for module in iter_modules([f"{__path__[0]}/{folder.rstrip('.')}"])
    if not module.ispkg
}
for _name in (*SHOWN, *sorted(_homes.keys() - {*SHOWN, LAST}), LAST):
    import_module(_homes[_name])


class _AlsoTheCatalogue(ModuleType):
    """Python puts this package over the function `kvlab.methods()`, so calling it does what that does."""

    def __call__(self) -> Any:
        from kvlab.catalogue import methods

        return methods()


sys.modules[__name__].__class__ = _AlsoTheCatalogue
