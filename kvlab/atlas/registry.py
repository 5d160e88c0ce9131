"""All exhibits by paper, in print order."""

from __future__ import annotations

from kvlab.atlas import beyond, gvote, keepkv, kvmerger, pyramid_pool, zsmerge
from kvlab.atlas.exhibit import Exhibit, Paper
from kvlab.common.errors import UserError

PAPERS: dict[Paper, str] = {
    "zsmerge": "ZSMerge",
    "kvmerger": "KVMerger",
    "pyramid-pool": "PyramidPool",
    "keepkv": "KeepKV",
    "gvote": "GVote",
    "beyond": "Beyond the five papers",
}
EXHIBITS: tuple[Exhibit, ...] = (
    *zsmerge.EXHIBITS,
    *kvmerger.EXHIBITS,
    *pyramid_pool.EXHIBITS,
    *keepkv.EXHIBITS,
    *gvote.EXHIBITS,
    *beyond.EXHIBITS,
)


def of_paper(paper: str) -> list[Exhibit]:
    """The exhibits of one paper."""
    return [exhibit for exhibit in EXHIBITS if exhibit.paper == paper]


def find(paper: str, slug: str) -> Exhibit:
    """The exhibit with this paper and slug; raises UserError if there is none."""
    found = [exhibit for exhibit in of_paper(paper) if exhibit.slug == slug]
    if not found:
        known = ", ".join(exhibit.slug for exhibit in of_paper(paper)) or "none"
        raise UserError(f"The atlas has no exhibit {slug!r} of {paper}: it has {known}.")
    return found[0]
