"""The exhibits of keepkv."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
