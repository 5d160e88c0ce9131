"""StreamingLLM: attention sinks plus a recent window."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
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

    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    positions: Literal["original", "cache"] = Field(
        "original", description="positions of tokens in the text, or of slots inside the cache (the authors' code)"
    )

    paper: ClassVar[str] = "https://arxiv.org/abs/2309.17453"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            "the paper's streams",
            {
                "sinks": (4, "section 3.2 and table 2: four sinks are enough"),
                "positions": ("cache", "section 3.2: positions within the cache"),
            },
        ),
        "code": Preset(
            "the authors' chat example, with 2,000 recent slots",
            {
                "sinks": (4, "examples/run_streaming_llama.py, start_size"),
                "positions": ("cache", "streaming_llm/pos_shift/modify_llama.py"),
            },
            beyond=(
                "The original stores unrotated keys and rotates them at every step; here sinks are rotated as the "
                "window moves, which gives the same distances."
            ),
        ),
        "perplexity": Preset(
            "the authors' perplexity script with its defaults and 255 recent slots",
            {
                "sinks": (1, "streaming_llm/utils.py, start_size"),
                "positions": ("original", "streaming_llm/utils.py: enable_pos_shift is off by default"),
            },
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "sinks": "the paper's; the perplexity script's own default is 1",
        "positions": (
            "tokens keep their positions in the text, as with every other method, and models without rotary positions "
            "have no other choice; within the trained length both work"
        ),
    }

    def pipeline(self) -> Pipeline:
        settle = EvictAndReposition() if self.positions == "cache" else Evict()
        return Pipeline(Recency(), Uniform(), LowestScore(sinks=self.sinks), settle)
