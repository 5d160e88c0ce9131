"""The exhibits of KeepKV (Tian et al., arXiv 2504.09936)."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.keepkv import attention, merging, scores

EXHIBITS = load_exhibits("keepkv", attention.DRAWINGS | merging.DRAWINGS | scores.DRAWINGS)
