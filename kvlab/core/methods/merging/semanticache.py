"""SemantiCache: split the text into chunks at delimiters, and merge clusters of similar keys within each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.recency import Recency
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.log_mass import MASS_HELP, SPACE_HELP, Mass, MassRule, Space
from kvlab.core.methods.settlers.merging.seed_clusters import SeedClusters


@register
class SemantiCache(Method):
    """Merges tokens with similar keys within a sentence, consecutive or not, into a slot that counts for all of them.

    A seed is the first free token of its sentence; it takes all later ones with keys similar enough to its own. Keys
    and values are averaged, and attention to the slot is raised by the log of its token count (proportional attention).
    Acts once, after the prompt; if even whole sentences are too many, the oldest are evicted.
    """

    name: ClassVar[str] = "semanticache"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "SemantiCache"

    theta: float | None = Field(
        None, ge=-1, le=1, description="cosine with its seed above which a token joins a cluster; none: solved per head"
    )
    loosest: float = Field(-1.0, ge=-1, le=1, description="lowest threshold that the search may reach")
    delimiters: str = Field(".!?;:\n", min_length=1, description="characters that end a chunk of the text")
    longest: int = Field(64, ge=2, le=512, description="most tokens of a chunk")
    mass: MassRule = Field("votes", description=MASS_HELP)
    alpha: float = Field(0.6, ge=0, le=1, description="mass `alpha`: its factor")
    space: Space = Field("rotated", description=SPACE_HELP)
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(16, ge=1, description="last tokens that always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2603.14303"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "greedy seed-based clustering with proportional attention",
            {
                "mass": ("votes", "abstract: proportional attention compensates for merging"),
            },
            beyond=(
                "Based on the abstract: thresholds, delimiters and protected tokens are unknown, and no code is "
                "available. Here generated tokens are kept."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "theta": "not given; solved per head, so that methods are compared at equal budgets",
        "loosest": "our choice: clustering meets the budget as long as sentences fit",
        "delimiters": "the abstract mentions natural boundaries; these end a sentence or a line",
        "longest": "our choice: bounds the memory of the similarities",
        "alpha": "zsmerge's; only used with mass `alpha`",
        "space": "keys are averaged as stored, as in most papers",
        "sinks": "as for the other methods here",
        "recent": "as for the other methods here: keeps the end of the question",
    }

    def pipeline(self) -> Pipeline:
        settle = SeedClusters(
            theta=self.theta,
            loosest=self.loosest,
            heavy=0.0,
            longest_set=self.longest,
            mass=Mass(self.mass, self.alpha),
            space=self.space,
            delimiters=self.delimiters,
        )
        return Pipeline(Recency(), Uniform(), LowestScore(self.sinks, self.recent), settle, decode=False)
