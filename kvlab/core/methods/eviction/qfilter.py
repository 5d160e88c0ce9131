"""Q-Filters: keep keys along the main direction of the model's queries."""

from pydantic import Field

from kvlab.core.contract import LowestScore, Method, Pipeline, Preset, Recent, Sinks, register
from kvlab.core.methods.eviction.triattention import FILE_HELP
from kvlab.core.methods.scorers.query_statistics import QueryFilter


@register
class QFilters(Method):
    """Keeps the tokens whose keys reach furthest along the main direction of the head's queries. Uses no attention.

    The direction is the first right singular vector of the queries of other texts, measured by `kvlab fit` and averaged
    over the group; it points to the queries' side. kvpress (qfilter_press.py) stores its negative and ranks by -k.u.
    """

    name = "qfilter"
    family = "eviction"
    title = "Q-Filters"

    queries: str = Field("mini", description=FILE_HELP)
    sinks: Sinks = 0
    recent: Recent = 1

    paper = "https://arxiv.org/abs/2503.02812"
    presets = {
        "paper": Preset(
            "the rule, as in kvpress",
            {
                "sinks": (0, "kvpress, qfilter_press.py: only keys decide"),
                "recent": (1, "kvpress, qfilter_press.py: only keys decide; the newest token is always kept here"),
            },
            beyond="The original ships directions of its models; here `kvlab fit` measures them.",
        ),
    }
    reasons = {
        "queries": (
            "statistics belong to a model's weights; those of mini, mini-60 and mini-half are included, others come "
            "from `kvlab fit`"
        ),
    }

    def pipeline(self) -> Pipeline:
        return Pipeline(QueryFilter(self.queries), select=LowestScore(self.sinks, self.recent))
