"""A law that needs no reference: StreamingLLM finds a needle as often as its place is kept, on any model."""

import tempfile
from pathlib import Path

import pandas as pd

from kvlab.common.answer_match import LEAST_SCORE
from kvlab.common.intervals import share_interval
from kvlab.core.choice import FULL, MethodChoice
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest, TaskChoice

BUDGETS = (0.5, 0.25)
PROMPTS = 24
LENGTH = 512
SEED = 6720


def check_needles(model: str) -> dict[str, str]:
    """A sentence for each budget: whether the share of needles found lies within its interval of what is kept.

    `PROMPTS` needles lie evenly over the text, and the cache is compressed before the question is read. Expected is the
    share of the text's places that StreamingLLM keeps, times what the full cache finds. A sentence begins with `held`,
    `FAILED`, or `not judged`, where the full cache finds less than half. Raises UserError for an unknown model.
    """
    request = EvalRequest(
        model=model,
        tasks=(TaskChoice(task="needle"),),
        choices=tuple(MethodChoice(method="streaming-llm", budget=budget) for budget in BUDGETS),
        lengths=(LENGTH,),
        depths=tuple(round((place + 0.5) / PROMPTS, 4) for place in range(PROMPTS)),
        samples=1,
        seed=SEED,
        question_aware=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = evaluate(request, Path(folder)).rows
    return judge_needles(rows)


def judge_needles(rows: pd.DataFrame) -> dict[str, str]:
    """The sentences of `check_needles` by budget, of rows of one task with needles all over the text."""
    full = rows[rows["method"] == FULL.method]
    found = full["score"].sum()
    whole = f"the full cache finds {found:.0f} of {len(full)}"
    checked = {}
    for budget, cell in rows[rows["method"] != FULL.method].groupby("budget", sort=False):
        # Tokens after the text (question and answer) have slots too, which hold no place of the text.
        after = cell["logical_tokens"] - cell["tokens_in_sight"]
        kept = float(((cell["slots"] - after) / cell["tokens_in_sight"]).mean())
        expected = kept * full["score"].mean()
        share = share_interval(round(cell["score"].sum()), len(cell))
        said = (
            f"StreamingLLM finds {cell['score'].sum():.0f} of {len(cell)} needles, {share.mean:.2f} "
            f"({share.low:.2f} to {share.high:.2f}); expected {expected:.2f}: {kept:.2f} of the text kept, {whole}"
        )
        holds = share.low <= expected <= share.high
        verdict = "held" if holds else "FAILED"
        if full["score"].mean() < LEAST_SCORE:
            verdict = f"not judged, {whole}"
            said = "a model that finds half of the needles is needed"
        checked[f"needles at {budget:.0%}"] = f"{verdict}: {said}"
    return checked
