"""The exhibits of GVote (Tang et al., arXiv 2509.03136)."""

from __future__ import annotations

from kvlab.atlas.exhibit import load_exhibits
from kvlab.atlas.gvote import probe, scores

EXHIBITS = load_exhibits("gvote", probe.DRAWINGS | scores.DRAWINGS)
