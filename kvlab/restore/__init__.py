"""Who killed the answer: the smallest sets whose return restores it, by reruns from the prompt as it was read."""

from kvlab.restore.search import rescue

__all__ = ["rescue"]
