"""SimCalKV: merge similar keys in pairs, calibrated so that a pair counts twice."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.wrappers.wrapper import PromptOnly
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.merging.pair_calibration import PairCalibration


@register
class SimCalKV(Method):
    """Merges the prompt's least attended tokens into the kept ones with the most similar keys, which count twice.

    The bias for counting twice is a log mass here. The authors' code adds it to every coordinate of the key;
    `variant=code` reproduces that. Acts once, after the prompt.
    """

    name: ClassVar[str] = "simcalkv"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "SimCalKV"
    paper, presets, reasons = published(__file__)

    threshold: float = Field(
        0.0, ge=-1, le=1, description="cosine of keys above which a token merges, else it is evicted"
    )
    variant: Literal["repaired", "code"] = Field(
        "repaired", description="a bias of ln 2 on the logit, or on each channel"
    )
    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: float | int = Field(0.5, gt=0, description="last tokens that always stay; below 1: a share of the budget")

    def pipeline(self) -> Pipeline:
        score, settle = PromptOnly(AccumulatedAttention()), PairCalibration(self.threshold, self.variant)
        return Pipeline(score, Uniform(), LowestScore(self.sinks, self.recent), settle, decode=False)
