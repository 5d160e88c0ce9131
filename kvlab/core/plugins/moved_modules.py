"""Old module paths that plug-ins may still import: they resolve to the new module, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

# Old path -> new path, one pair per line.
MOVED = dict(
    line.split() for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines() if line
)


class _Alias(Loader):
    """Registers the module at its new path under its old name too."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        # The importing file is several importlib frames away, so the warning points here.
        warnings.warn(f"{old} has moved: import its names from kvlab.extend.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(MOVED[old])


class MovedModules(MetaPathFinder):
    """Finds the old paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if fullname in MOVED else None


def install() -> None:
    """Make old paths importable in this process; a second call changes nothing.

    The finder comes first: an old package resolves to a new one, in which the path finder would find modules of the
    same name and load them a second time.
    """
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
