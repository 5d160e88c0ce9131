"""Old names of modules that documentation once told plug-ins to import; they still import, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Scorers and settlers once lay in one folder each.
_SUBFOLDERS = {
    "kvlab.methods.scorers": {
        "around": "beside prompt_only slots_alone",
        "attention": "accumulated ema last_query recent_rows window",
        "contents": "keys_alone lag none redundancy",
        "to_come": "ballots expected future rehearsed",
    },
    "kvlab.methods.settlers": {
        "eviction": "evict lots reposition",
        "merging": "consecutive cosine_merge gaussian_sets group_fit nearest_merge pair_calibration pair_merge",
        "pooling": "pool",
        "refitting": "global_ridge matching",
        "residuals": "exact_residual observed residual",
    },
}
MOVED = {
    f"{package}.{module}": f"{package}.{folder}.{module}"
    for package, folders in _SUBFOLDERS.items()
    for folder, modules in folders.items()
    for module in modules.split()
}


class _Alias(Loader):
    """Puts the module at its new place under its old name too."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        # The caller is some frames of importlib away, so that the warning names this module, not the plug-in.
        warnings.warn(f"{old} has moved: import its names from kvlab.extend.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(MOVED[old])


class MovedModules(MetaPathFinder):
    """Finds the old names, after every other finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if fullname in MOVED else None


def install() -> None:
    """Make old names importable in this process; a second call changes nothing."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
