"""TriAttention: while generating, keep the keys that the model's mean queries will attend to at these distances."""

from typing import Literal

from pydantic import Field

from kvlab.core.contract import DecodeCompression, LowestScore, Pipeline, Preset, register
from kvlab.core.contract.method import Decoding, PromptTokens, Recent
from kvlab.core.methods.scorers.query_statistics import QueryCentres

FILE_HELP = "query statistics: mini, a file of `kvlab fit --method triattention`, or untrained (random)"


@register
class TriAttention(DecodeCompression):
    """Scores keys by each head's mean query before rotation, at future distances, whenever `buffer` tokens gathered.

    Uses no attention: means and lengths of queries were measured on other texts by `kvlab fit`. The rules are those of
    the authors' code (methods/pruning_utils.py and triattention.py); `heads=each` is its per-layer-per-head mode. Its
    other two modes combine scores over layers (`union` the largest of all, `per_head` the mean over layers of the
    largest of the group), which no decision while decoding here can; `heads=shared` is the union within a layer. The
    noise that the code adds against ties is left out.
    """

    name = "triattention"
    family = "eviction"
    title = "TriAttention"

    queries: str = Field("mini", description=FILE_HELP)
    furthest: int = Field(65_536, ge=1, description="scores are averaged over the distances 1, 2, 4, .. ahead, to this")
    heads: Literal["each", "shared"] = Field("each", description="each KV head by its own query heads, or all alike")
    prompt: PromptTokens = "compete"
    decode: Decoding = "budget"
    recent: Recent = 1

    paper = "https://arxiv.org/abs/2604.04921"
    presets = {
        "paper": Preset(
            "the experiments' settings (scripts/cli.py and triattention/configs)",
            {
                "furthest": (65536, "scripts/cli.py, triattention_frequency_window"),
                "prompt": (
                    "keep",
                    "methods/triattention.py, compute_keep_indices: prefill tokens are always preserved",
                ),
                "decode": ("budget", "methods/triattention.py, triattention_forward"),
                "buffer": (128, "scripts/cli.py, divide_length with slack_budget_trigger"),
                "recent": (1, "methods/triattention.py: no window is protected; the newest token is always kept here"),
            },
            beyond=(
                "In the original the heads of all layers choose together (modes union and per_head); here each layer "
                "decides for itself."
            ),
        ),
        "code": Preset(
            "the code's per-layer-per-head mode with prompt compression",
            {
                "furthest": (65536, "scripts/cli.py, triattention_frequency_window"),
                "prompt": ("compete", "configs/extra_config/triattention_per_head_pruning_allow_prefill.yaml"),
                "decode": ("budget", "methods/triattention.py, triattention_forward"),
                "buffer": (128, "scripts/cli.py, divide_length with slack_budget_trigger"),
                "recent": (1, "methods/triattention.py: no window is protected; the newest token is always kept here"),
                "heads": ("each", "methods/triattention.py, per_layer_perhead_pruning"),
            },
        ),
    }
    reasons = {
        "queries": (
            "statistics belong to a model's weights; those of mini, mini-60 and mini-half are included, others come "
            "from `kvlab fit`"
        ),
        "heads": "the code's per-layer-per-head mode, the only one of the three that needs no other layer",
        "prompt": "a budget here is often a share of the prompt, which then has to give up tokens itself",
    }

    def pipeline(self) -> Pipeline:
        score = QueryCentres(self.queries, furthest=self.furthest, heads=self.heads, prompt=self.prompt)
        return self.with_decoding(Pipeline(score, select=LowestScore(recent=self.recent), decode=False))
