"""Another metric of answers that are there already: ROUGE-1 and ROUGE-2 of summaries scored by ROUGE-L."""

from __future__ import annotations

import json

import pandas as pd

from kvlab.common.errors import UserError
from kvlab.evaluate.scoring.metrics import LIKELIHOOD_METRICS, check_metric, score


def rescore(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows with `metric` and its score in place of theirs, from `prediction` and `answer`.

    Raises UserError for a metric that is not there, and for rows without a written answer.
    """
    check_metric(metric)
    if metric in LIKELIHOOD_METRICS or rows["metric"].isin(LIKELIHOOD_METRICS).any():
        raise UserError(f"{metric} cannot be had of these rows: only answers that were written are scored again.")
    pairs = zip(rows["prediction"], rows["answer"], strict=True)
    scores = [score(metric, prediction, json.loads(answers)) for prediction, answers in pairs]
    return rows.assign(metric=metric, score=scores)
