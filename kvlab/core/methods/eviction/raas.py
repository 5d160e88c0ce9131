"""RaaS: while generating, evict the token that has been longest without attention."""

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, PromptTokens, Recent, register
from kvlab.core.methods.scorers.time_stamps import TimeStamps


@register
class RaaS(Method):
    """Stamps each token with the last query that gave it attention, and evicts the one with the oldest stamp.

    The paper's milestones, such as an intermediate result, are read for a while and then never again. It works on pages
    of tokens with estimated scores; here on tokens, with their attention. Where a budget is too small for the prompt,
    the prompt's tokens go by the same rule, with its last `window` queries.
    """

    name = "raas"
    family = "eviction"
    title = "RaaS"

    threshold: float = Field(1e-4, ge=0, le=1, description="attention from which on a token's stamp is renewed")
    window: int = Field(32, ge=1, description="last prompt queries that stamp the prompt's tokens")
    prompt: PromptTokens = "compete"
    recent: Recent = 1

    paper = "https://arxiv.org/abs/2502.11147"
    presets = {
        "paper": Preset(
            "the paper's policy",
            {
                "prompt": ("keep", "the prompt is never evicted"),
                "recent": (1, "no window is protected; the newest token is always kept here"),
            },
            beyond=(
                "The original decides about pages of tokens, by estimates of their attention; here about tokens, by "
                "their attention."
            ),
        ),
    }
    reasons = {
        "threshold": "our choice, a token's attention that still counts; the paper's value holds for its page scores",
        "window": "SnapKV's; the paper never evicts from the prompt",
        "prompt": "a budget here is often a share of the prompt, which then has to give up tokens itself",
    }

    def pipeline(self) -> Pipeline:
        score = TimeStamps(self.threshold, self.window, "stamp", self.prompt)
        return Pipeline(score, select=LowestScore(recent=self.recent))
