"""The exhibits of gvote."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit

EXHIBITS: tuple[Exhibit, ...] = ()
