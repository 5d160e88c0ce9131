"""The exhibits of KeepKV (Tian et al., arXiv 2504.09936)."""

from __future__ import annotations

from kvlab.atlas.exhibit_texts import exhibits_of
from kvlab.atlas.keepkv import attention, merging, scored, speed

EXHIBITS = exhibits_of("keepkv", attention.DRAWINGS | merging.DRAWINGS | scored.DRAWINGS | speed.DRAWINGS)
