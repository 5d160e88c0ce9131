"""The exhibits of GVote (Tang et al., arXiv 2509.03136)."""

from __future__ import annotations

from kvlab.atlas.exhibit_texts import exhibits_of
from kvlab.atlas.gvote import probed, scored

EXHIBITS = exhibits_of("gvote", probed.DRAWINGS | scored.DRAWINGS)
