"""The exhibits of ZSMerge."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.zsmerge import contents, measurements

EXHIBITS = load_exhibits("zsmerge", contents.DRAWINGS | measurements.DRAWINGS)
