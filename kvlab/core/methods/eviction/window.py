"""Local window: the last tokens only."""

from kvlab.core.contract import Method, Pipeline, register
from kvlab.core.methods.scorers.recency import Recency


@register
class Window(Method):
    """Keeps only the most recent tokens; the first token, the attention sink of many heads, is lost.

    A window has no gaps, so distances in the text and inside the cache are equal and rotary attention cannot tell them
    apart; hence there is no option for positions as with StreamingLLM.
    """

    name = "window"
    family = "eviction"
    title = "Local window"
    paper = ""

    def pipeline(self) -> Pipeline:
        return Pipeline(Recency())
