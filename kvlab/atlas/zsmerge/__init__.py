"""The exhibits of ZSMerge."""

from __future__ import annotations

from kvlab.atlas.exhibit_texts import exhibits_of
from kvlab.atlas.zsmerge import contents, measured

EXHIBITS = exhibits_of("zsmerge", contents.DRAWINGS | measured.DRAWINGS)
