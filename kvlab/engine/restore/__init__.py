"""Find the smallest sets of tokens or heads whose restoration brings a run's right answer back, by reruns."""

from kvlab.engine.restore.search import restore

__all__ = ["restore"]
