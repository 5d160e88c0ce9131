"""Every token, quantized: the effect of quantization without eviction."""

from typing import ClassVar

from kvlab.core.contract.method import register
from kvlab.core.methods.whole.full import Full


@register
class Packed(Full):
    """Keeps every token in quantized slots; natively it equals the full cache. `full:store=kivi4` is an alias."""

    name: ClassVar[str] = "packed"
    family: ClassVar[str] = "quantising"
    title: ClassVar[str] = "Every token, packed"
