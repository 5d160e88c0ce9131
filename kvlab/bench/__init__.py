"""Benchmark memory and speed on real model shapes, against strong baselines and the device's bounds.

`request` describes a benchmark, `harness` runs it, each file of `modes` measures one kind of figure, `rows` is the
result format, `presets` and `paper_numbers.csv` have the papers' experiments, `targets` what kvlab promises.
"""

from kvlab.bench.request import BenchRequest

__all__ = ["BenchRequest"]
