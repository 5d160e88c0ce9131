"""The exhibits of KVMerger (Wang et al., arXiv 2407.08454)."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.kvmerger import benchmarks, explainers, memory, needle, similarity, sparsity, weights

EXHIBITS = load_exhibits(
    "kvmerger",
    benchmarks.DRAWINGS
    | explainers.DRAWINGS
    | memory.DRAWINGS
    | needle.DRAWINGS
    | similarity.DRAWINGS
    | sparsity.DRAWINGS
    | weights.DRAWINGS,
)
