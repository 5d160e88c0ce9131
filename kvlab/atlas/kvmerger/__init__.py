"""The exhibits of kvmerger."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
