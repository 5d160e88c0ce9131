"""The full cache, as reference."""

from typing import ClassVar

from kvlab.core.contract.method import Method, register
from kvlab.core.contract.pipeline import Pipeline
from kvlab.core.methods.scorers.recency import Unscored


@register
class Full(Method):
    """Keeps every token, in the same attention function as other methods, so that only compression can differ."""

    name: ClassVar[str] = "full"
    family: ClassVar[str] = "reference"
    title: ClassVar[str] = "Full cache"
    paper: ClassVar[str] = ""
    needs_budget: ClassVar[bool] = False

    def pipeline(self) -> Pipeline:
        """Never decides: the cache gives this method an unlimited budget."""
        return Pipeline(Unscored(), decode=False)


@register
class Packed(Full):
    """Keeps every token in quantized slots; natively it equals the full cache. `full:store=kivi4` is an alias."""

    name: ClassVar[str] = "packed"
    family: ClassVar[str] = "quantising"
    title: ClassVar[str] = "Every token, packed"


@register
class Sparse(Full):
    """Keeps every token and reads a part of them at each step (`read=quest`). `full:read=quest` is an alias."""

    name: ClassVar[str] = "sparse"
    family: ClassVar[str] = "reading"
    title: ClassVar[str] = "Every token, read in part"
