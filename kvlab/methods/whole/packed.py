"""Every token, in a store: what quantising the cache does without dropping anything."""

from typing import ClassVar

from kvlab.methods.core.method import register
from kvlab.methods.whole.full import Full


@register
class Packed(Full):
    """Keeps every token, its slots held in a store; natively it is the full cache. `full:store=kivi4` means this."""

    name: ClassVar[str] = "packed"
    family: ClassVar[str] = "quantising"
    title: ClassVar[str] = "Every token, packed"
