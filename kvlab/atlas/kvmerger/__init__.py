"""The exhibits of KVMerger (Wang et al., arXiv 2407.08454), in the order the paper prints them."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.kvmerger import benchmarks, explainers, memory, needle, similarity, sparsity, weights

_ALL = (
    *benchmarks.EXHIBITS,
    *memory.FIGURES,
    *needle.FIGURES,
    *explainers.FIGURES,
    *similarity.FIGURES,
    *sparsity.FIGURES,
    *weights.FIGURES,
    *similarity.WALLS,
)
_ORDER = (
    "fig-1", "fig-2", "fig-3a", "fig-3b", "fig-3c", "fig-3d", "fig-4", "fig-5", "fig-6", "fig-7", "fig-8", "fig-9",
    "tab-1", "tab-2", "tab-3", "tab-4", "tab-5", "tab-6",
)  # fmt: skip
EXHIBITS: tuple[Exhibit, ...] = tuple(sorted(_ALL, key=lambda exhibit: _ORDER.index(exhibit.slug)))
