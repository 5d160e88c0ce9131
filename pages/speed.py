"""Speed: the progress and results of benchmarks. `?job=` follows one."""

from __future__ import annotations

from app.evaluation.result_rows import ResultsPage
from app.evaluation.speed_results import results
from app.figures.figure import page_file
from app.run_views import page
from kvlab.bench.request import BenchJob

page.heading(
    "Speed",
    "Decoding speed, prefill time and memory of compressed caches, compared with the best full cache in the same "
    "process and with the bounds of this device.",
)
ResultsPage("speed", "Timing", BenchJob, results).show()
page_file("Speed", "Compressed caches compared with the full cache and the bounds of the device.")
