"""Local window: the last tokens and nothing else."""

from typing import ClassVar

from kvlab.methods.allocators.uniform import Uniform
from kvlab.methods.core.method import Method, register
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.scorers.key_value.recency import Recency
from kvlab.methods.selectors.top_k import LowestScore
from kvlab.methods.settlers.eviction.evict import Evict


@register
class Window(Method):
    """Keeps the most recent tokens only; the first token, on which many heads park their attention, is lost.

    A window has no gaps, so positions in the text and positions inside the cache are the same distances: rotary
    attention cannot tell them apart, and there is no option for it as with StreamingLLM.
    """

    name: ClassVar[str] = "window"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Local window"
    paper: ClassVar[str] = ""

    def pipeline(self) -> Pipeline:
        """Recency scores, nothing protected but the newest token."""
        return Pipeline(Recency(), Uniform(), LowestScore(), Evict())
