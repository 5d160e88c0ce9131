"""LazyEviction: while generating, keep tokens that have not been silent for longer than they used to be."""

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, PromptTokens, Recent, register
from kvlab.core.methods.scorers.time_stamps import TimeStamps


@register
class LazyEviction(Method):
    """Decides whenever `buffer` tokens were generated, by a token's silence over the largest gap it has come back from.

    Tokens of a chain of thought get attention again after many steps (recurrence), so the longest gap that a token has
    survived says how long its silence may last. The paper's second term, a weight of the gap itself, is left out: its
    form could not be confirmed.
    """

    name = "lazyeviction"
    family = "eviction"
    title = "LazyEviction"

    threshold: float = Field(1e-4, ge=0, le=1, description="attention from which on a token counts as read again")
    window: int = Field(32, ge=1, description="last prompt queries that count")
    buffer: int = Field(128, ge=1, description="generated tokens kept before each decision (observation window)")
    prompt: PromptTokens = "compete"
    recent: Recent = 16

    paper = "https://arxiv.org/abs/2506.15969"
    presets = {
        "paper": Preset(
            (
                "the paper's first term: silence over the maximum recurrence interval, decided after each observation "
                "window"
            ),
            {},
            beyond="The paper's second term, a weight of the interval itself, is left out.",
        ),
    }
    reasons = {
        "threshold": "our choice, a token's attention that still counts",
        "window": "SnapKV's",
        "buffer": "R-KV's value, as for the other methods here that decide every so many tokens",
        "prompt": "a budget here is often a share of the prompt, which then has to give up tokens itself",
        "recent": "our choice: a token that was just generated has had no time to recur",
    }

    def pipeline(self) -> Pipeline:
        score = TimeStamps(self.threshold, self.window, "recurrence", self.prompt)
        return Pipeline(score, select=LowestScore(recent=self.recent), buffer=self.buffer)
