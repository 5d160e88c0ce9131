"""The exhibits of KeepKV (Tian et al., arXiv 2504.09936), in the order the paper prints them."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.keepkv import attention, merging, scored, speed

_RULES, _WORKFLOW = merging.FIGURES
EXHIBITS: tuple[Exhibit, ...] = (
    _RULES,
    *attention.FIGURES,
    _WORKFLOW,
    *scored.FIGURES,
    *speed.TABLES,
    *scored.TABLES,
)
