"""Module paths of version 0.1 that moved: they resolve to the new module, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Packages and modules of methods that joined the one on the right, in paths of today and of version 0.1.
_JOINED = {
    "scorers.attention": "scorers",
    "scorers.key_value": "scorers",
    "scorers.lookahead": "scorers",
    "scorers.wrappers": "scorers",
    "settlers.eviction": "settlers",
    "settlers.merging": "settlers",
    "settlers.refitting": "settlers",
    "settlers.residuals": "settlers",
    "readings.clusters": "sparse_attention.selection",
    "readings.draws": "sparse_attention.selection",
    "readings": "sparse_attention",
}
# Modules of parts that are now the pipeline's defaults.
_DEFAULT_PARTS = (
    "selectors.fifo",
    "selectors.top_k",
    "settlers.eviction.evict",
    "settlers.evict",
    "allocators.uniform",
)
# Old module or package -> new one, the innermost package first.
MOVED = {
    **{
        f"kvlab{core}.methods.{old}": "kvlab.core.contract.pipeline" for core in ("", ".core") for old in _DEFAULT_PARTS
    },
    **{
        f"kvlab{core}.methods.{old}": f"kvlab.core.methods.{new}"
        for core in ("", ".core")
        for old, new in _JOINED.items()
    },
    **{f"kvlab{core}.methods.allocators.rounding": "kvlab.core.contract.numerics" for core in ("", ".core")},
    **{f"{old}.decode_buffer": "kvlab.core.contract.method" for old in ("kvlab.methods.core", "kvlab.core.contract")},
    **{
        f"{old}.reading": "kvlab.core.contract.sparse_attention"
        for old in ("kvlab.methods.core", "kvlab.core.contract")
    },
    "kvlab.core.cache.layers.reading": "kvlab.core.cache.layers.sparse_attention",
    "kvlab.methods.core.contract": "kvlab.core.contract.parts",
    "kvlab.methods.core": "kvlab.core.contract",
    "kvlab.methods": "kvlab.core.methods",
    "kvlab.cache": "kvlab.core.cache",
    "kvlab.attention": "kvlab.core.attention",
    "kvlab.stores": "kvlab.core.stores",
    "kvlab.fitted": "kvlab.core.fitted",
    "kvlab.plugins": "kvlab.core.plugins",
    "kvlab.common.errors": "kvlab.core.errors",
    "kvlab.common.validation": "kvlab.core.validation",
    "kvlab.common.assets": "kvlab.core.assets",
    "kvlab.requests.budget": "kvlab.core.budget",
    "kvlab.models.families": "kvlab.core.families",
    "kvlab.views.base.amounts": "kvlab.views.base.words",
    "kvlab.views.base.cells": "kvlab.views.base.head_map",
    "kvlab.views.base.line_labels": "kvlab.views.base.lines",
    "kvlab.views.base.text_panel": "kvlab.views.base.export",
    "kvlab.views.frames.merge_sets": "kvlab.views.similarity",
    "kvlab.views.frames.public_board": "kvlab.views.public_board",
    "kvlab.figures.base": "kvlab.views.base",
    "kvlab.figures.board_texts": "kvlab.views.board",
    "kvlab.figures": "kvlab.views",
    "kvlab.analysis.comparison.own_texts": "kvlab.views.frames.outcome",
    "kvlab.analysis.comparison": "kvlab.views.frames",
    "kvlab.analysis": "kvlab.views.frames",
    "kvlab.prefix": "kvlab.engine.prefix",
    "kvlab.documents": "kvlab.tasks.documents",
}


def new_path(old: str) -> str | None:
    """The path that a module has now, or None if it did not move."""
    for before, now in MOVED.items():
        if old == before or old.startswith(before + "."):
            return now + old.removeprefix(before)
    return None


class _Alias(Loader):
    """Registers the module at its new path under its old name too."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        # The importing file is several importlib frames away, so the warning points here.
        warnings.warn(f"{old} has moved: import its names from kvlab.extend.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(str(new_path(old)))


class MovedModules(MetaPathFinder):
    """Finds the old paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if new_path(fullname) else None


def install() -> None:
    """Make old paths importable in this process; a second call changes nothing.

    The finder comes first: an old package resolves to a new one, in which the path finder would find modules of the
    same name and load them a second time.
    """
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
