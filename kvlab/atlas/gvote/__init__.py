"""The exhibits of GVote (Tang et al., arXiv 2509.03136), in the order the paper prints them."""

from __future__ import annotations

from kvlab.atlas.exhibit import Exhibit
from kvlab.atlas.gvote import probed, scored

EXHIBITS: tuple[Exhibit, ...] = (*scored.FIRST, *probed.FIGURES, *scored.REST)
