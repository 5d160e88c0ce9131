"""TOVA: evict what the newest query attends to least, the same tokens in every head of a layer."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.last_query import LastQuery
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Tova(Method):
    """Keeps what the newest query attends to, averaged over all heads of the layer, updated at every step.

    Only the newest token is protected; an evicted token cannot return, whatever later queries need.
    """

    name: ClassVar[str] = "tova"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "TOVA"

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")
    heads: Literal["shared", "each"] = Field("shared", description="whether all heads of a layer keep the same tokens")

    paper: ClassVar[str] = "https://arxiv.org/abs/2401.06104"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the paper's policy",
            {
                "sinks": (0, "the paper's policy has no fixed tokens; kvpress, tova_press.py, has none"),
                "recent": (1, "the current token is in the cache; kvpress, tova_press.py, gives it the highest score"),
                "heads": ("shared", "the layer-wise form of the paper; kvpress, tova_press.py, averages over heads"),
            },
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "sinks": "the paper's",
        "recent": "the paper's",
        "heads": "the paper's",
    }

    def pipeline(self) -> Pipeline:
        return Pipeline(LastQuery(self.heads), Uniform(), LowestScore(self.sinks, self.recent), Evict())
