"""EpiKV: while generating, keep the tokens at which the model's residual stream changed most."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.preset import Preset
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.epiphany import Epiphany
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class EpiKV(Method):
    """Evicts, in all layers and heads alike, the token with the smallest change of the residual stream (epiphany).

    Changes at a depth where they go with important tokens count for a token, and those at a later depth against it;
    both as z-scores among the newest tokens, so that neither grows with the text. No attention is read. Every layer
    decides by the scores of the tokens before its pass, the newest tokens are protected, so all layers choose alike.
    Where prompt tokens compete, all layers hold the whole prompt until its last one has read it.
    """

    name: ClassVar[str] = "epikv"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "EpiKV"

    early: float = Field(11 / 32, ge=0, le=1, description="share of the layers after which changes count for a token")
    late: float = Field(22 / 32, ge=0, le=1, description="share of the layers after which changes count against it")
    window: int = Field(64, ge=2, le=4096, description="newest tokens that a change is compared with")
    recent: int = Field(128, ge=1, description="last tokens that always stay, at most a quarter of the budget")
    sinks: int = Field(4, ge=0, description="first tokens that always stay")
    prompt: Literal["compete", "keep"] = Field(
        "compete", description="prompt tokens compete, or stay as long as the budget holds them"
    )

    paper: ClassVar[str] = "https://arxiv.org/abs/2606.26472"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            (
                "the paper's EpiKV, in the numbers of the authors' code (DetrendendHSVarianceEviction; "
                "github.com/stevenkolawole/epiphany-kv-cache, src/eviction.py, d424208)"
            ),
            {
                "early": (0.34375, "band_a_layer = 10: after eleven of the 32 layers"),
                "late": (0.6875, "band_b_layer = 21: after 22 of the 32 layers"),
                "window": (64, "window"),
                "recent": (128, "keep_recent_k, at most a quarter of cache_size"),
                "sinks": (0, "the prompt stays whole, and the first tokens with it"),
                "prompt": ("keep", "keep_mask[:prefill_len]"),
            },
            beyond=(
                "Where the budget leaves less room beside the prompt than recent tokens take, the code keeps the "
                "prompt and drops recent tokens by chance, at worst all of them; here recent tokens come first. This "
                "is EpiKV-Flat; the segments of EpiKV-Seg are not here."
            ),
        ),
    }
    reasons: ClassVar[Mapping[str, str]] = {
        "early": "the code's layer, scaled to the model's depth",
        "late": "the code's layer, scaled to the model's depth",
        "sinks": (
            "StreamingLLM's; the code keeps the whole prompt and its first tokens with it, and the score sees no "
            "attention"
        ),
        "prompt": "a budget here is often a share of the prompt, which then has to give up tokens itself",
    }

    def pipeline(self) -> Pipeline:
        score = Epiphany(self.early, self.late, self.window, self.prompt)
        return Pipeline(score, Uniform(), LowestScore(self.sinks, self.recent, most=0.25), Evict())
