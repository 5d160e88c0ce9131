"""LagKV: keep tokens that stand out from those that follow."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.window_methods import PROMPT_ONLY, RKV_BUFFER
from kvlab.core.methods.scorers.key_value.lag import Lag
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class LagKV(GoesOn):
    """Keeps, in each partition of the prompt, the tokens that vary most relative to the next partition's range.

    Uses no queries and no attention. The last full partition and what follows are kept as long as the budget allows.
    Acts on the prompt only, unless `decode=budget`.
    """

    name: ClassVar[str] = "lagkv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "LagKV"

    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    lag: int = Field(128, ge=2, description="tokens of a partition")

    paper: ClassVar[str] = "https://arxiv.org/abs/2504.04704"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the paper's experiments, as in kvpress",
            {
                "sinks": (4, "kvpress, lagkv_press.py, n_sink"),
                "lag": (128, "kvpress, lagkv_press.py, lag_size"),
            },
            beyond="The original keeps a share of each partition; here the budget is met exactly, by the same ranks.",
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "sinks": "the paper's",
        "lag": "the paper's",
        "decode": PROMPT_ONLY,
        "buffer": RKV_BUFFER,
    }

    def pipeline(self) -> Pipeline:
        score = Lag(self.sinks, self.lag)
        return self.going_on(Pipeline(score, Uniform(), LowestScore(self.sinks), Evict(), decode=False))
