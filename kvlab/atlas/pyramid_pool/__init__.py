"""The exhibits of pyramid_pool."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
