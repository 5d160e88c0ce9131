"""SimCalKV: merge similar keys in pairs, calibrated so that a pair counts twice."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
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

    threshold: float = Field(
        0.0, ge=-1, le=1, description="cosine of keys above which a token merges, else it is evicted"
    )
    variant: Literal["repaired", "code"] = Field(
        "repaired", description="a bias of ln 2 on the logit, or on each channel"
    )
    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: float | int = Field(0.5, gt=0, description="last tokens that always stay; below 1: a share of the budget")

    paper: ClassVar[str] = "https://github.com/William-kaihhu/SimCalKV"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "bias calibration as intended: two merged tokens count as two",
            {
                "variant": ("repaired", "the calibration's aim; a bias belongs to the logit"),
            },
        ),
        "code": Preset(
            "the authors' code",
            {
                "variant": ("code", "task_evaluation/llama/merge_ours.py, merge_by_token and get_qt"),
                "threshold": (0.0, "task_evaluation/llama/merge_ours.py, Repair, sim_thr"),
                "sinks": (0, "task_evaluation/llama/merge_ours.py: only attention decides"),
                "recent": (
                    1,
                    "task_evaluation/llama/merge_ours.py: only attention decides; the newest token is always kept here",
                ),
            },
            beyond="It treats every query head as a KV head.",
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "variant": "a number added to every coordinate changes logits by the sum of the query's coordinates",
        "threshold": "the code's",
        "sinks": "the code's",
        "recent": "half of the budget, as in H2O, whose score it uses: sums over all queries favour old tokens",
    }

    def pipeline(self) -> Pipeline:
        score, settle = PromptOnly(AccumulatedAttention()), PairCalibration(self.threshold, self.variant)
        return Pipeline(score, Uniform(), LowestScore(self.sinks, self.recent), settle, decode=False)
