"""Safe budget: how small the cache may be on one's own prompts, with a guarantee. `?job=` follows an evaluation."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.evaluation.quality_form import SAFE_BUDGET, evaluation_form
from app.evaluation.result_rows import ResultsPage, measured_rows
from app.evaluation.safe_budget_results import results
from app.figures.figure import page_file
from app.run_views import page
from app.session.url_state import get_param
from kvlab.core.errors import UserError
from kvlab.evaluation.request import EvalJob
from kvlab.results.risk.sentences import fewest_prompts

PAGE = ResultsPage("safe_budget", "evaluation", EvalJob, results)


def main() -> None:
    page.heading(
        "Safe budget",
        "How small may the cache be so that your prompts keep their answers? The smallest budget of each method, with "
        "a statistical guarantee.",
    )
    job = get_param("job")
    try:
        if job is not None:
            PAGE.follow(job)
        else:
            rows = measured_rows("every_evaluation")
            if PAGE.shows_form(by_default=rows.empty):
                st.caption(plain(fewest_prompts()))
                evaluation_form(measured_rows("evaluations"), SAFE_BUDGET)
            else:
                results()
    except UserError as error:
        st.error(plain(str(error)))
    page_file("Safe budget", "The smallest cache at which prompts keep their answers, with a guarantee.")


main()
