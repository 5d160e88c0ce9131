"""The exhibits of KVMerger (Wang et al., arXiv 2407.08454), in the order the paper prints them."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.kvmerger import explainers, similarity, sparsity, weights

_ALL = (*explainers.FIGURES, *similarity.FIGURES, *sparsity.FIGURES, *weights.FIGURES, *similarity.WALLS)
_ORDER = (
    "fig-1", "fig-2", "fig-3a", "fig-3b", "fig-3d", "fig-4", "fig-6", "fig-7", "fig-8", "fig-9",
)  # fmt: skip
EXHIBITS: tuple[Exhibit, ...] = tuple(sorted(_ALL, key=lambda exhibit: _ORDER.index(exhibit.slug)))
