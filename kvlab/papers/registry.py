"""All exhibits by paper, in print order, and the measurements that fill them if nothing was measured yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvlab.core.errors import UserError
from kvlab.papers.beyond import contests
from kvlab.papers.beyond import recordings as beyond
from kvlab.papers.exhibit import Choice, Exhibit, Needs, Paper, load_exhibits
from kvlab.papers.gvote import probe
from kvlab.papers.gvote import scores as gvote
from kvlab.papers.keepkv import attention, merging
from kvlab.papers.keepkv import scores as keepkv
from kvlab.papers.kvmerger import benchmarks, compression, explainers, memory, needle, similarity
from kvlab.papers.pyramid_pool import calculator
from kvlab.papers.pyramid_pool import recordings as pyramids
from kvlab.papers.pyramid_pool import scores as pyramid_pool
from kvlab.papers.zsmerge import contents, measurements
from kvlab.requests.measurement import MINI, Measurement
from kvlab.results.sources import Sources

PAPERS: dict[Paper, str] = {
    "zsmerge": "ZSMerge",
    "kvmerger": "KVMerger",
    "pyramid-pool": "PyramidPool",
    "keepkv": "KeepKV",
    "gvote": "GVote",
    "beyond": "Beyond the five papers",
}
KVMERGER = (benchmarks, explainers, memory, needle, similarity, compression)
PYRAMID_POOL = pyramids.DRAWINGS | calculator.DRAWINGS | pyramid_pool.DRAWINGS
EXHIBITS: tuple[Exhibit, ...] = (
    *load_exhibits("zsmerge", contents.DRAWINGS | measurements.DRAWINGS),
    *load_exhibits("kvmerger", {slug: draw for module in KVMERGER for slug, draw in module.DRAWINGS.items()}),
    *load_exhibits("pyramid-pool", PYRAMID_POOL, {"fig-1": calculator.ENTRIES}),
    *load_exhibits("keepkv", attention.DRAWINGS | merging.DRAWINGS | keepkv.DRAWINGS),
    *load_exhibits("gvote", probe.DRAWINGS | gvote.DRAWINGS),
    *contests.TABLES,
    *load_exhibits("beyond", beyond.DRAWINGS),
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


class Empty(Sources):
    """A folder of runs in which nothing was measured yet."""

    @property
    def results(self) -> Path:
        return Path("nowhere")


def measurement_of(exhibit: Exhibit, root: Path, model: str = MINI) -> Measurement | None:
    """The measurement of a model that makes the exhibit's data in the folder of runs `root`; None for a calculator."""
    drawn = exhibit.drawing(Empty(root, named=model), Choice(), "light")
    return drawn.measurement if isinstance(drawn, Needs) else None


def measurements_of(root: Path, keys: Sequence[str] = (), model: str = MINI) -> list[Measurement]:
    """The measurements of a model for the named exhibits, or for all; each once.

    Raises UserError if a key is not `paper/slug`, or there is no such exhibit.
    """
    if bad := next((key for key in keys if key.count("/") != 1), None):
        raise UserError(f"{bad!r} names no exhibit: write its paper and number, such as keepkv/fig-3.")
    chosen = [find(*key.split("/")) for key in keys] or list(EXHIBITS)
    needed = (measurement_of(exhibit, root, model) for exhibit in chosen)
    return list(dict.fromkeys(measurement for measurement in needed if measurement))
