"""Random eviction: the control of every comparison."""

from typing import ClassVar

from pydantic import Field

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.methods.allocators.uniform import Uniform
from kvlab.core.methods.scorers.key_value.draws import Draws
from kvlab.core.methods.selectors.top_k import LowestScore
from kvlab.core.methods.settlers.eviction.evict import Evict


@register
class Random(Method):
    """Keeps tokens at random, in each head others: a method that does no better has learned nothing from the text.

    The seed is the cache's. kvpress has the same control (random_press.py) and draws anew at every decision; here a
    token keeps its number, so that what stays is a uniform sample of the text at all times.
    """

    name: ClassVar[str] = "random"
    family: ClassVar[str] = "eviction"
    title: ClassVar[str] = "Random"
    paper: ClassVar[str] = ""

    sinks: int = Field(0, ge=0, description="first tokens that always stay")
    recent: int = Field(1, ge=1, description="last tokens that always stay")

    def pipeline(self) -> Pipeline:
        return Pipeline(Draws(), Uniform(), LowestScore(self.sinks, self.recent), Evict())
