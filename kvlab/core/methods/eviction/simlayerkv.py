"""SimLayerKV: lazy layers keep sinks and recent tokens, the others everything."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.lazy_layers import LazyLayers
from kvlab.core.methods.scorers.key_value.recency import Recency
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class SimLayerKV(Method):
    """Keeps sinks and recent tokens in layers that attend to little else, and the whole prompt in all other layers.

    Takes no budget: how many layers are lazy depends on the text. Follows kvpress (simlayerkv_press.py), which leaves
    the last tokens out of the recent ones. Acts once, after the prompt: generated tokens are kept in addition.
    """

    name: ClassVar[str] = "simlayerkv"
    family: ClassVar[str] = "budget-free"
    title: ClassVar[str] = "SimLayerKV"
    needs_budget: ClassVar[bool] = False

    threshold: float = Field(0.9, ge=0, le=1, description="share of attention from which on a layer is lazy")
    queries: int = Field(1, ge=1, description="last prompt queries whose attention decides")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    recent: int = Field(64, ge=1, description="last tokens that always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2410.13846"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the settings of Llama 3, as in kvpress",
            {
                "threshold": (
                    0.9,
                    "kvpress, simlayerkv_press.py: Llama 3; .65 for Llama 2, .8 for Mistral, .85 for Qwen",
                ),
                "queries": (1, "kvpress, simlayerkv_press.py, n_last"),
                "sinks": (4, "kvpress, simlayerkv_press.py, n_initial"),
                "recent": (1024, "kvpress, simlayerkv_press.py, n_recent"),
            },
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "recent": "1,024 tokens are all of a short prompt",
    }

    def pipeline(self) -> Pipeline:
        select = LowestScore(self.sinks, self.recent)
        return Pipeline(Recency(), LazyLayers(self.threshold, self.queries, select), select, Evict(), decode=False)
