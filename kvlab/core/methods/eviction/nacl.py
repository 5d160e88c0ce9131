"""NACL: keep what proxy tokens attend to, and some of the rest at random."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.window import WindowAttention
from kvlab.core.methods.selectors.sampled_rest import SampledRest
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Nacl(Method):
    """Keeps the tokens that the prompt's last tokens attend to most, and draws a share of the budget from the others.

    Draws are by softmax of the same score, so that tokens which the proxies overlook have a chance. Follows
    KVCache-Factory (pyramidkv/nacl.py). Acts once, after the prompt, as published.
    """

    name: ClassVar[str] = "nacl"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "NACL"

    window: int = Field(32, ge=1, description="last prompt tokens that score (proxies); they always stay")
    drawn: float = Field(0.1, ge=0, le=1, description="share of the budget that is drawn at random")
    temperature: float = Field(1.0, gt=0, description="of the softmax that tokens are drawn by")
    sinks: int = Field(0, ge=0, description="first tokens that always stay")

    paper: ClassVar[str] = "https://arxiv.org/abs/2408.03675"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "proxies at the end of the prompt, as in KVCache-Factory",
            {
                "temperature": (1.0, "KVCache-Factory, pyramidkv/nacl.py, random_temperature"),
                "sinks": (0, "KVCache-Factory, pyramidkv/nacl.py, select_nacl_proxy_indices: suffix"),
            },
            beyond="The paper's share of random tokens could not be confirmed.",
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "window": "SnapKV's, which are the same queries",
        "drawn": "our choice: mostly by score, and some by chance",
    }

    def pipeline(self) -> Pipeline:
        select = SampledRest(LowestScore(self.sinks, self.window), self.drawn, self.temperature)
        return Pipeline(WindowAttention(self.window, 1), Uniform(), select, Evict(), decode=False)

    @property
    def own_window(self) -> int:
        """The proxies."""
        return self.window
