"""StreamingLLM: attention sinks plus a recent window."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.recency import Recency
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict
from kvlab.core.methods.settlers.eviction.reposition import EvictAndReposition


@register
class StreamingLLM(Method):
    """Keeps the first few tokens (attention sinks) and the most recent ones.

    `positions="cache"`, as in the authors' code, counts positions inside the cache, so that a stream may exceed the
    model's context window: sinks come right before the recent tokens, wherever those are in the text. With `original`
    (default) every token keeps its position in the text, as with all other methods.
    """

    name: ClassVar[str] = "streaming-llm"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "StreamingLLM"
    paper, presets, reasons = published(__file__)

    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    positions: Literal["original", "cache"] = Field(
        "original", description="positions of tokens in the text, or of slots inside the cache (the authors' code)"
    )

    def pipeline(self) -> Pipeline:
        settle = EvictAndReposition() if self.positions == "cache" else Evict()
        return Pipeline(Recency(), Uniform(), LowestScore(sinks=self.sinks), settle)
