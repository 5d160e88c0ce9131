"""Every token stays and few are read: the effect of a reading without eviction."""

from typing import ClassVar

from kvlab.core.contract.method import register
from kvlab.core.methods.whole.full import Full


@register
class Sparse(Full):
    """Keeps every token and reads a part of them at each step (`read=quest`). `full:read=quest` is an alias."""

    name: ClassVar[str] = "sparse"
    family: ClassVar[str] = "reading"
    title: ClassVar[str] = "Every token, read in part"
