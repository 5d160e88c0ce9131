"""The full cache, as reference."""

from kvlab.core.contract import Method, Pipeline, register
from kvlab.core.methods.scorers.recency import Unscored


@register
class Full(Method):
    """Keeps every token, in the same attention function as other methods, so that only compression can differ."""

    name = "full"
    family = "reference"
    title = "Full cache"
    paper = ""
    needs_budget = False

    def pipeline(self) -> Pipeline:
        """Never decides: the cache gives this method an unlimited budget."""
        return Pipeline(Unscored(), decode=False)


@register
class Packed(Full):
    """Keeps every token in quantized slots; natively it equals the full cache. `full:store=kivi4` is an alias."""

    name = "packed"
    family = "quantising"
    title = "Every token, packed"


@register
class Sparse(Full):
    """Keeps every token and reads a part of them at each step (`read=quest`). `full:read=quest` is an alias."""

    name = "sparse"
    family = "sparse attention"
    title = "Every token, read in part"
