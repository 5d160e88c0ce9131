"""Run a model with compressed caches and record what happens."""

from kvlab.engine.compare import compare, run

__all__ = ["compare", "run"]
