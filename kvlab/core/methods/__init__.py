"""Compression methods. They decide on tensors only; nothing here touches a model or a file.

Each method is one module in `eviction`, `merging`, or `whole` (all tokens stay). Importing the module registers the
method. This package imports all of them: first those in `SHOWN`, in display order, then any others, and last `compose`,
which combines parts of the others.
"""

from importlib import import_module
from pkgutil import iter_modules

from kvlab.core.contract.method import Method, make_method, registered
from kvlab.core.methods import sparse_attention  # noqa: F401  a method's settings name one

__all__ = ["Method", "make_method", "registered"]

SHOWN = (
    "full", "window", "random", "streaming_llm", "h2o", "snapkv", "pyramidkv", "adakv",
    "pyramidinfer", "gvote", "tova", "keydiff", "key_norm", "lagkv", "kvzip", "kvcompose", "kvzap", "fast_kvzip",
    "duoattention", "attention_matching", "expected_attention", "criticalkv", "defensivekv", "cap", "cur", "compactor",
    "qfilter", "simlayerkv", "rkv", "triattention", "morphkv", "raas", "lazyeviction", "chunkkv",
    "headkv", "lukv", "nacl", "vase", "finch", "scissorhands", "zsmerge", "kvmerger", "pyramid_pool",
    "cam", "d2o", "less", "keepkv", "simcalkv", "grkv", "asymkv", "kvslimmer", "semanticache", "exactmerge",
    "exactmerge2",
)  # fmt: skip
FOLDERS = ("eviction", "merging", "whole")

_homes = {
    module.name: f"{__name__}.{folder}.{module.name}"
    for folder in FOLDERS
    for module in iter_modules([f"{__path__[0]}/{folder}"])
}
for _name in (*SHOWN, *sorted(_homes.keys() - {*SHOWN})):
    import_module(_homes[_name])
import_module(f"{__name__}.composition.composed")
