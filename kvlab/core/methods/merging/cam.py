"""CaM: cache merging of values."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.attention.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.selectors.fifo import Oldest
from kvlab.core.methods.settlers.merging.value_merge import Chance, ValueMerge

Variant = Literal["code", "simulation", "row", "threshold"]
CHANCES: dict[Variant, Chance] = {"code": "mean", "simulation": "max", "row": "row", "threshold": "threshold"}


@register
class CaM(Method):
    """Keeps sinks and a recent window; a value that leaves the window is added to the values after it.

    A token is merged with probability of its attention over that of its rivals, which the paper and the authors'
    programs define differently: see `variant`. The default `code` is the paper's formula and the streaming program:
    over the mean of the next `merge` tokens. Values are added, not averaged, so their norm may grow. Keys are dropped.
    Victims after the prompt are judged by the attention of the whole prompt.
    """

    name: ClassVar[str] = "cam"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "CaM"
    paper, presets, reasons = published(__file__)

    variant: Variant = Field(
        "code",
        description="a token's rivals: the next tokens' mean (code), the largest kept token (simulation), the window's "
        "mean for the newest query only (row), or merging above the mean (threshold)",
    )
    sinks: int | float = Field(
        4, ge=0, description="first tokens that always stay; below 1: a share of the budget, rounded up"
    )
    merge: int = Field(16, ge=1, description="tokens a value is spread over; in `simulation`, the window")
    draw: Literal["bernoulli", "expected"] = Field(
        "bernoulli", description="merge with probability p (seeded), or always with weight p"
    )

    @field_validator("sinks")
    @classmethod
    def _check_recent(cls, sinks: int | float) -> int | float:
        if isinstance(sinks, float) and sinks >= 1:
            raise ValueError("a number of tokens must be an integer")
        return sinks or 0

    def pipeline(self) -> Pipeline:
        reach = None if self.variant == "simulation" else self.merge
        return Pipeline(
            AccumulatedAttention(), Uniform(), Oldest(self.sinks), ValueMerge(CHANCES[self.variant], reach, self.draw)
        )
