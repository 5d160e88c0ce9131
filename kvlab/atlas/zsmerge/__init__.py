"""The exhibits of ZSMerge, in the order the paper prints them."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.zsmerge import contents, measured

EXHIBITS: tuple[Exhibit, ...] = (*contents.FIGURES, *measured.EXHIBITS)
