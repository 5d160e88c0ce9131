"""LESS: evicted tokens are absorbed into a low-rank state."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.core.contract.method import Method, make_method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.contract.published_settings import published
from kvlab.core.methods.scorers.wrappers.wrapper import SlotsAlone
from kvlab.core.methods.settlers.less import Absorb


@register
class LESS(Method):
    """An eviction method with a state of fixed size per head that absorbs what it evicts.

    Each head keeps H = sum psi(k) v^T (rank x head_dim) and z = sum psi(k) over evicted tokens. A query adds phi(q) H
    to the numerator and phi(q) z to the denominator of its attention, like one more slot with query-dependent log mass
    and value. phi and psi are small networks per head, fitted to a model by `kvlab train-less`; those for `mini` are
    included. Weights "untrained" are random, for tests and for timing. The state's bytes are counted; in recorded runs
    its tokens count as merged, not as regret, although their events say that they were evicted.

    The shipped features are exponential. The paper's, with gelu (`train-less --form gelu`), fit layer 1 of mini equally
    well (0.08 of eviction's squared error on held-out text at 10 %) and layer 3, which retrieves, worse: 0.80 after
    1,100 steps, against 0.69 after 400. For another score or allocation, compose with settle "less".
    """

    name: ClassVar[str] = "less"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "LESS"
    paper, presets, reasons = published(__file__)

    evictor: Literal["h2o", "window", "streaming-llm", "snapkv", "pyramidkv", "adakv"] = Field(
        "h2o", description="the eviction method that chooses the victims"
    )
    weights: str = Field("mini", description="feature maps: mini, a file of kvlab train-less, or untrained (random)")
    rank: int = Field(8, ge=1, description="features per head, the rows of its state; must match the maps")

    scores: Literal["all", "slots"] = Field(
        "all", description="attention the evictor scores by: including the state's share, or among slots only"
    )

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        return make_method(self.evictor).notes(budget_slots, prompt_tokens)

    @property
    def own_window(self) -> int:
        return make_method(self.evictor).own_window

    def pipeline(self) -> Pipeline:
        plain = make_method(self.evictor).pipeline()
        score = plain.score if self.scores == "all" else SlotsAlone(plain.score)
        return replace(plain, score=score, settle=Absorb(self.weights, self.rank))
