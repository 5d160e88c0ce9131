"""The exhibits of ZSMerge."""

from __future__ import annotations

from kvlab.atlas.described import exhibits_of
from kvlab.atlas.zsmerge import contents, measured

EXHIBITS = exhibits_of("zsmerge", contents.DRAWINGS | measured.DRAWINGS)
