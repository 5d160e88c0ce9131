"""Q-Filters: keep keys along the main direction of the model's queries."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.eviction.triattention import FILE_HELP
from kvlab.core.methods.scorers.lookahead.query_statistics import QueryFilter
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class QFilters(Method):
    """Keeps the tokens whose keys reach furthest along the main direction of the head's queries. Uses no attention.

    The direction is the first right singular vector of the queries of other texts, measured by `kvlab fit` and averaged
    over the group; it points to the queries' side. kvpress (qfilter_press.py) stores its negative and ranks by -k.u.
    """

    name: ClassVar[str] = "qfilter"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Q-Filters"
    paper, presets, reasons = published(__file__)

    queries: str = Field("mini", description=FILE_HELP)
    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        return Pipeline(QueryFilter(self.queries), Uniform(), LowestScore(self.sinks, self.recent), Evict())
