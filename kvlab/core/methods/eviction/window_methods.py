"""Hyper-parameters shared by methods that score with SnapKV's observation window."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from kvlab.core.contract import DecodeCompression, LowestScore, Method, Pipeline
from kvlab.core.methods.scorers.window import Aggregate, Edges, WindowAttention

SHARED_HEADS = (
    "Query heads that share a KV head vote together and keep the same slots here; in the original each chooses its "
    "own, and keys are stored once per query head."
)
WINDOW_REASONS = {
    "edges": "zeros beyond the ends would reduce the sink by up to 2/5; no effect with max pooling, the default",
    "aggregate": "as published; the others are DefensiveKV's and the maximum it begins with",
    "decay": "as published: all queries of the window count alike",
}
PROMPT_ONLY = "it compresses the prompt only, as published; `budget` is for long generations"
RKV_BUFFER = "R-KV's value in its comparison with SnapKV; only used with `decode=budget`"


def _check_odd(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError("the kernel must be odd")
    return kernel


Odd = Annotated[int, AfterValidator(_check_odd)]  # width of a pooling centred on each slot


class WindowScored(Method):
    """A method scored by the pooled attention of the prompt's last queries."""

    window: int = Field(32, ge=1, description="last prompt queries that vote; these tokens always stay")
    kernel: Odd = Field(7, ge=1, le=1025, description="width of the pooling over neighbours, odd")
    pooling: Literal["max", "average"] = Field("max", description="pooling over neighbours")


class WindowEvicting(WindowScored, DecodeCompression):
    """A window-scored method that evicts, such as SnapKV and methods that allocate its budgets."""

    added: ClassVar[tuple[str, ...]] = ("aggregate", "decay")
    keeps_window: ClassVar[bool] = True

    edges: Edges = Field(
        "tokens", description="average pooling at the ends of the text: real tokens only, or zeros beyond them too"
    )
    aggregate: Aggregate = Field(
        "mean", description="over queries and the group's heads: mean, maximum, or DefensiveKV's worst case"
    )
    decay: float = Field(
        1.0, ge=0, le=1, description="weight of a query relative to the next one; 0: only the newest counts"
    )

    def pipeline(self) -> Pipeline:
        """Evicts the lowest scores before the window, with equal budgets (SnapKV); others replace parts of it."""
        score = WindowAttention(self.window, self.kernel, self.pooling, self.edges, self.aggregate, self.decay)
        return self.with_decoding(Pipeline(score, select=LowestScore(recent=self.window), decode=False))
