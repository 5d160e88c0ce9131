"""Safe budget: how small the cache may be on one's own prompts, with a guarantee. `?job=` follows an evaluation."""

from __future__ import annotations

from app.evaluation.result_rows import ResultsPage
from app.evaluation.safe_budget_results import results
from app.figures.figure import page_file
from app.run_views import page
from kvlab.evaluation.request import EvalJob

page.heading(
    "Safe budget",
    "How small may the cache be so that your prompts keep their answers? The smallest budget of each method, with "
    "a statistical guarantee.",
)
ResultsPage("safe_budget", "A guarantee", EvalJob, results).show()
page_file("Safe budget", "The smallest cache at which prompts keep their answers, with a guarantee.")
