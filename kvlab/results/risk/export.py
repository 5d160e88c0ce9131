"""Safe budgets as a view of evaluation rows, and as JSON."""

import json
from dataclasses import asdict

import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.results.risk import sentences
from kvlab.results.risk.losses import ARM, ASKED, Measure, flips, measurable, overlap
from kvlab.results.risk.safe_budget import ALL, Criterion, SafeBudgets, find_safe_budgets
from kvlab.views.base.palette import Theme
from kvlab.views.base.view import view
from kvlab.views.risk import caption_risk_against_budget, risk_against_budget

NOT_MEASURABLE = "These rows have neither scores nor texts nor KL, so nothing can be certified."
AXES: dict[Measure, str] = {
    "answer": "prompts that lose their answer", "score": "mean fall of the score", "text": "prompts with another text",
    "kl": "prompts with a KL above the threshold",
}  # fmt: skip

PROMPT_COLUMNS = [
    "group",
    "task",
    "index",
    "content",
    ARM,
    ASKED,
    "loss",
    "answer",
    "prediction",
    "reference_text",
    "kl",
]


def as_json(found: SafeBudgets, notes: list[str], out: str) -> str:
    """The result as one JSON object: sentences, answers, table, flips, overlap and the prompts that change."""
    frames = {
        "answers": found.answers,
        "table": found.table,
        "flips": flips(found.paired),
        "overlap": overlap(found.paired),
        "changed": found.changed[PROMPT_COLUMNS].reset_index(drop=True),
    }
    lines = {name: json.loads(frame.to_json(orient="records", double_precision=15)) for name, frame in frames.items()}
    words = {
        "sentences": sentences.headline(found),
        "methods": sentences.method_lines(found),
        "assumptions": sentences.assumptions(found),
        "notes": [*sentences.notes(found), *notes],
    }
    numbers: dict[str, object] = {"alpha": found.alpha, "families": found.families, "least_prompts": found.least}
    made = found.simulated
    safe = [{"group": group, ARM: arm, "samples": counts} for (group, arm), counts in made.safe.items()]
    numbers |= {"simulated": {"draws": made.draws, "wrong": made.wrong, "smallest_certified": safe}}
    asked = {"out": out, "model": found.model, "criterion": asdict(found.criterion)}
    return json.dumps(asked | words | numbers | lines, indent=2, ensure_ascii=False)


@view("risk_by_budget", title="Risk by budget", page="safe_budget")
def risk_by_budget(
    rows: pd.DataFrame, by: Measure | None = None, tolerance: float | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """`risk_table` of the rows; budgets of too few prompts are counted, and none of them is certified.

    Default: by the first of the measures that the rows have, and the smallest usual tolerance that so many prompts can
    certify. Raises UserError as `find_safe_budgets`.
    """
    ways = measurable(rows)
    if not ways:
        raise UserError(NOT_MEASURABLE)
    criterion = Criterion(by or ways[0], tolerance or sentences.tolerance_for(rows, confidence), confidence)
    return risk_table(find_safe_budgets(rows, criterion, show_too_few=True))


def risk_table(found: SafeBudgets, group: str = ALL) -> pd.DataFrame:
    """The table of a group of prompts; its `attrs` are what the view draws beside it."""
    table = found.table[found.table["group"] == group]
    table.attrs |= {"by": found.criterion.by, "tolerance": found.criterion.tolerance}
    return table


@risk_by_budget.figure
def draw_risk(frame: pd.DataFrame, theme: Theme) -> go.Figure:
    group = frame["group"].iloc[0]
    where = "" if group == ALL else str(group)
    return risk_against_budget(frame, frame.attrs["tolerance"], AXES[frame.attrs["by"]], theme, where)


@risk_by_budget.caption
def describe_risk(frame: pd.DataFrame) -> str:
    return caption_risk_against_budget(frame, frame.attrs["tolerance"])
