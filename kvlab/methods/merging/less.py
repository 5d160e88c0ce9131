"""LESS: what eviction drops lives on in a low-rank state."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from kvlab.methods.core.method import Method, make_method, register
from kvlab.methods.core.pipeline import Pipeline
from kvlab.methods.core.published_settings import published
from kvlab.methods.scorers.wrappers.wrapper import SlotsAlone
from kvlab.methods.settlers.less import Absorb


@register
class LESS(Method):
    """An eviction method with a state of fixed size beside its slots, into which what it drops is absorbed.

    Each head keeps H = sum psi(k) v^T (rank x head_dim) and z = sum psi(k) over dropped tokens. A query adds phi(q) H
    to the numerator and phi(q) z to the denominator of its attention, as one more slot would whose log mass and value
    follow the query. phi and psi are small networks per head, fitted to a model by `kvlab train-less`; those for `mini`
    ship. Weights "untrained" are random ones, for tests of mechanics and for timing. The state's bytes are counted; in
    recorded runs its tokens count as merged, not as regret, although their events say that they were evicted.

    The shipped features are exponential. The paper's, with gelu (`train-less --form gelu`), fit layer 1 of mini as well
    (0.08 of eviction's squared error on held-back text at 10 %) and layer 3, which retrieves, worse: 0.80 after 1,100
    steps, against 0.69 after 400. For another score or allocation beneath it, compose with settle "less".
    """

    name: ClassVar[str] = "less"
    family: ClassVar[str] = "merging"
    title: ClassVar[str] = "LESS"
    paper, presets, reasons = published(__file__)

    evictor: Literal["h2o", "window", "streaming-llm", "snapkv", "pyramidkv", "adakv"] = Field(
        "h2o", description="the eviction method that chooses what is dropped"
    )
    weights: str = Field("mini", description="feature maps: mini, a file of kvlab train-less, or untrained (random)")
    rank: int = Field(8, ge=1, description="features a head: rows of its state; must be what the maps were fitted with")

    scores: Literal["all", "slots"] = Field(
        "all", description="attention that the evictor scores by: a slot's part of all, or of what the slots get"
    )

    def notes(self, budget_slots: int, prompt_tokens: int) -> list[str]:
        """The evictor's."""
        return make_method(self.evictor).notes(budget_slots, prompt_tokens)

    @property
    def own_window(self) -> int:
        """The evictor's."""
        return make_method(self.evictor).own_window

    def pipeline(self) -> Pipeline:
        """The evictor's score, allocation and selection, absorbing."""
        plain = make_method(self.evictor).pipeline()
        score = plain.score if self.scores == "all" else SlotsAlone(plain.score)
        return replace(plain, score=score, settle=Absorb(self.weights, self.rank))
