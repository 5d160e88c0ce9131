"""Losses of prompts under compressed caches against the full cache on the same prompt, from evaluation rows."""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd

from kvlab.common.formatting import join_words, prompts
from kvlab.core import FULL, UserError
from kvlab.evaluation.results.summary import CHUNK, PROMPT, with_measures
from kvlab.evaluation.scoring.metrics import LIKELIHOOD_METRICS, UNSCORED
from kvlab.results.quality_tables import label_rows

Measure = Literal["answer", "score", "text", "kl"]
MEASURES: dict[Measure, str] = {
    "answer": "answers that the full cache gets right and the compressed cache does not",
    "score": "mean fall of the score against the full cache's",
    "text": "generated texts that differ from the full cache's",
    "kl": "texts whose mean next-token KL against the full cache is above the threshold",
}
KL_ABOVE = 0.1  # nats per token
SETUP = ("model", "model_digest", "question_aware", CHUNK)  # what one guarantee is about
ARM = "arm"
ASKED = "asked"


def measurable(rows: pd.DataFrame) -> list[Measure]:
    """The measures that have rows; those by answer need right answers, KL a forced continuation."""
    return [name for name in MEASURES if len(measured_by(rows, name))]


def losses(rows: pd.DataFrame, by: Measure, kl_above: float = KL_ABOVE, methods: Sequence[str] = ()) -> pd.DataFrame:
    """One row per prompt, method with its options, and budget: evaluation rows paired with the full cache's.

    Of the named `methods` (with options), else of all.

    Added columns: `arm`, `asked` (budget in words), `prompt` (number, equal for equal prompts), `group` (task),
    `reference` and `reference_text` (score and text of the full cache), `loss` in [0, 1], `gain` (how much the score
    rose, else 0), `error` (why the metric gave no score), `kept` and `bytes` (shares of the full cache).

    A prompt that the full cache gets wrong cannot change to wrong: its loss is 0, and it counts as a prompt. A prompt
    whose metric raised an error counts as changed. Raises UserError without rows for `by`, for rows of several models
    or settings, for unknown methods, and where a method lacks prompts that the full cache has.
    """
    rows = measured_by(rows, by)
    if rows.empty:
        raise UserError(lacking(by))
    for name in SETUP:
        if name in rows and rows[name].nunique(dropna=False) > 1:
            found = join_words([str(value) for value in rows[name].drop_duplicates()][:4])
            raise UserError(
                f"A guarantee is about one {name.replace('_', ' ')}, and the rows have {found}: choose one."
            )
    full = rows["method"] == FULL.method
    if not full.any():
        raise UserError("These rows have none of the full cache, which the others are compared with: evaluate it too.")
    if full.all():
        raise UserError("These rows have the full cache alone: evaluate at least one method.")
    if "error" not in rows:  # rows from before errors were recorded
        rows = rows.assign(error=None)
    rows = label_rows(with_measures(rows))
    keys = [name for name in PROMPT if name in rows]
    rows = rows.assign(prompt=rows.groupby(keys, dropna=False, sort=False).ngroup())
    whole = rows[rows["method"] == FULL.method].drop_duplicates("prompt").set_index("prompt")
    paired = rows[(rows["method"] != FULL.method) & rows["prompt"].isin(whole.index)]
    named = {"reference": "score", "reference_text": "prediction", "reference_error": "error"}
    at = paired["prompt"]
    paired = paired.assign(**{name: whole[column].reindex(at).to_numpy() for name, column in named.items()})
    # The named methods: by arm, or all arms of a method.
    for name in methods:
        if not (paired[[ARM, "method"]] == name).any(axis=None):
            known = paired[ARM].drop_duplicates().tolist()
            raise UserError(f"These rows have no method {name!r}: they have {join_words(known)}.")
    if methods:
        paired = paired[paired[ARM].isin(methods) | paired["method"].isin(methods)]
    loss, gain = _loss(paired, by, kl_above)
    paired = paired.assign(loss=loss, gain=gain, group=paired["task"])
    count = int(full.sum())
    measured = paired.groupby([ARM, ASKED], sort=False)["prompt"].nunique()
    short = measured[measured < count]
    if len(short):
        arm, asked = short.index[0]
        lacks = prompts(count - int(short.iloc[0]))
        raise UserError(f"{arm} at {asked} lacks {lacks} of {count}: finish the evaluation, or leave that method out.")
    return paired


def measured_by(rows: pd.DataFrame, by: Measure) -> pd.DataFrame:
    """The rows that have this measure."""
    likelihood = rows["metric"].isin(LIKELIHOOD_METRICS)
    if by == "kl":
        return rows[rows["kl"].notna()]
    return rows[~likelihood & (rows["prediction"].notna() if by == "text" else rows["metric"] != UNSCORED)]


def lacking(by: Measure) -> str:
    """Why there is nothing to measure by, and what to do."""
    if by == "kl":
        return (
            "No row has a KL: measure it on the full cache's continuation with `kvlab safe-budget --by kl`, or with "
            "`kvlab eval --forced`."
        )
    if by == "text":
        return (
            "No row has a generated text: measure prompts that force a given text by kl, and rows shipped without "
            "their texts by answer."
        )
    return f"These prompts have no answers, so none can be lost by {by}: add a column answer, or measure by text or kl."


def _loss(paired: pd.DataFrame, by: Measure, kl_above: float) -> tuple[np.ndarray, np.ndarray]:
    if by == "kl":
        # A KL that is not a number is no closeness to the full cache.
        return (~(pd.to_numeric(paired["kl"]) <= kl_above)).to_numpy(float), np.zeros(len(paired))
    if by == "text":
        differs = paired["prediction"].fillna("") != paired["reference_text"].fillna("")
        return differs.to_numpy(float), np.zeros(len(paired))
    fall = (paired["reference"] - paired["score"]).to_numpy(float)
    unknown = np.isnan(fall) | paired[["error", "reference_error"]].notna().any(axis=1).to_numpy()
    loss = np.clip(fall, 0.0, 1.0)
    gain = np.clip(-fall, 0.0, 1.0)
    if by == "answer":
        loss = (loss > 0).astype(float)
    return np.where(unknown, 1.0, loss), np.where(unknown, 0.0, gain)


def ladder(paired: pd.DataFrame, arm: str) -> list[str]:
    """The budgets of a method as text, the largest first. Raises UserError if their units cannot be compared."""
    budgets = paired.loc[paired[ARM] == arm, ["budget", "budget_unit", ASKED]].drop_duplicates()
    if budgets["budget_unit"].nunique() > 1:
        units = join_words(sorted(budgets["budget_unit"].unique()))
        raise UserError(f"{arm} has budgets in {units}, which have no common order: give budgets in one unit.")
    return budgets.sort_values("budget", ascending=False)[ASKED].tolist()


COLUMNS = [ARM, "method", ASKED, "prompts", "worse", "better", "share_worse", "share_better"]
PAIRS = [ASKED, "one", "other", "worse_one", "worse_other", "common", "shared"]


def flips(paired: pd.DataFrame) -> pd.DataFrame:
    """One row per method and budget: how many prompts got worse (right to wrong) and better (wrong to right).

    `paired` as from `losses.losses`; by text or KL a prompt only changes, and `better` is 0. Budgets go from the
    largest down.
    """
    ordered = paired.sort_values("budget", ascending=False, kind="stable")
    found = ordered.groupby([ARM, "method", ASKED], sort=False).agg(
        prompts=("prompt", "nunique"),
        worse=("loss", lambda loss: int((loss > 0).sum())),
        better=("gain", lambda gain: int((gain > 0).sum())),
    )
    found = found.reset_index().sort_values(ARM, kind="stable", ignore_index=True)
    shares = {f"share_{name}": found[name] / found["prompts"] for name in ("worse", "better")}
    return found.assign(**shares)[COLUMNS]


def overlap(paired: pd.DataFrame) -> pd.DataFrame:
    """One row per budget and pair of methods: the prompts that get worse under each and under both.

    `shared` is the share of those that get worse under either (Jaccard index); null where there are none.
    """
    lines = []
    worse = paired[paired["loss"] > 0]
    for asked, at in paired.sort_values("budget", ascending=False, kind="stable").groupby(ASKED, sort=False):
        changed = worse[worse[ASKED] == asked].groupby(ARM)["prompt"].agg(set).to_dict()
        for one, other in combinations(sorted(at[ARM].unique()), 2):
            first = changed.get(one, set())
            second = changed.get(other, set())
            common = len(first & second)
            either = len(first | second)
            shared = common / either if either else None
            lines.append((asked, one, other, len(first), len(second), common, shared))
    return pd.DataFrame(lines, columns=PAIRS)
