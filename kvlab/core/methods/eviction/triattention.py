"""TriAttention: while generating, keep the keys that the model's mean queries will attend to at these distances."""

from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.decode_buffer import GoesOn
from kvlab.core.contract.method import register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.lookahead.query_statistics import QueryCentres
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict

FILE_HELP = "query statistics: mini, a file of `kvlab fit --method triattention`, or untrained (random)"


@register
class TriAttention(GoesOn):
    """Scores keys by each head's mean query before rotation, at future distances, whenever `buffer` tokens gathered.

    Uses no attention: means and lengths of queries were measured on other texts by `kvlab fit`. The rules are those of
    the authors' code (methods/pruning_utils.py and triattention.py); `heads=each` is its per-layer-per-head mode. Its
    other two modes combine scores over layers (`union` the largest of all, `per_head` the mean over layers of the
    largest of the group), which no decision while decoding here can; `heads=shared` is the union within a layer. The
    noise that the code adds against ties is left out.
    """

    name: ClassVar[str] = "triattention"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "TriAttention"
    paper, presets, reasons = published(__file__)

    queries: str = Field("mini", description=FILE_HELP)
    furthest: int = Field(65_536, ge=1, description="scores are averaged over the distances 1, 2, 4, .. ahead, to this")
    heads: Literal["each", "shared"] = Field("each", description="each KV head by its own query heads, or all alike")
    prompt: Literal["compete", "keep"] = Field(
        "compete", description="prompt tokens compete, or stay as long as the budget holds them"
    )
    decode: Literal["keep", "budget"] = Field("budget", description="keep generated tokens, or let them compete")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        score = QueryCentres(self.queries, furthest=self.furthest, heads=self.heads, prompt=self.prompt)
        return self.going_on(Pipeline(score, Uniform(), LowestScore(recent=self.recent), Evict(), decode=False))
