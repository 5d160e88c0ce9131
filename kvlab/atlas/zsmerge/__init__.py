"""The exhibits of zsmerge."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
