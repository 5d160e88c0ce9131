"""StreamingLLM: attention sinks plus a recent window."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.base import Method, register
from kvlab.methods.pipeline import Pipeline
from kvlab.methods.presets import Preset
from kvlab.methods.scorers.contents.none import Recency
from kvlab.methods.selectors.lowest_score import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict
from kvlab.methods.settlers.eviction.reposition import EvictAndReposition


@register
class StreamingLLM(Method):
    """Keeps the first few tokens (attention sinks) and the most recent ones.

    `positions="cache"` is the authors' own: positions are counted inside the cache, so that a stream may outlast the
    window the model was trained on. Sinks then stand right before the recent tokens, wherever those are in the text.
    With `original` (default) every token keeps its place in the text, as with all other methods.
    """

    name: ClassVar[str] = "streaming-llm"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "StreamingLLM"
    paper: ClassVar[str] = "https://arxiv.org/abs/2309.17453"

    presets: ClassVar = {
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
            "Keys are stored unrotated and turned at every step; here sinks are turned as the window moves on, which "
            "gives the same distances.",
        ),
        "perplexity": Preset(
            "the authors' perplexity script as it stands, with 255 recent slots",
            {
                "sinks": (1, "streaming_llm/utils.py, start_size"),
                "positions": ("original", "streaming_llm/utils.py: enable_pos_shift is off unless asked for"),
            },
        ),
    }
    reasons: ClassVar = {
        "sinks": "the paper's; the perplexity script's own default is 1",
        "positions": "a token keeps its place in the text, as with every other method, and models without rotary "
        "positions have no other choice; inside the trained length both work",
    }

    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    positions: Literal["original", "cache"] = Field(
        "original", description="positions of tokens in the text, or of slots inside the cache (the authors' own)"
    )

    def pipeline(self) -> Pipeline:
        """Recency scores, sinks protected."""
        settle = EvictAndReposition() if self.positions == "cache" else Evict()
        return Pipeline(Recency(), Uniform(), LowestScore(sinks=self.sinks), settle)
