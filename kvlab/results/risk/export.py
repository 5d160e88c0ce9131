"""Safe budgets as a view of evaluation rows, and as JSON."""

import json
from dataclasses import asdict

import pandas as pd
import plotly.graph_objects as go

from kvlab.core.errors import UserError
from kvlab.results.risk import sentences
from kvlab.results.risk.losses import ARM, ASKED, Measure, flips, measurable, overlap
from kvlab.results.risk.safe_budget import ALL, Criterion, SafeBudgets, find_safe_budgets
from kvlab.views.base import HUES, QUIET, Theme, finish, pick, run_styles
from kvlab.views.base.view import view

TOLERANCES = 4  # the axis has room for as many at least
ABOVE = 1.06
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
    """A line per method through the observed risks, with bars up to the bounds; certified budgets are filled.

    The frame is one group's (`risk_table`).
    """
    tolerance = frame.attrs["tolerance"]
    group = str(frame["group"].iloc[0])
    figure = go.Figure()
    order = frame.sort_values("budget").drop_duplicates("asked")["asked"].tolist()
    styles = run_styles(frame[["arm", "method"]].itertuples(index=False, name=None), theme)
    for arm, arm_rows in frame.groupby("arm", sort=False):
        rows = arm_rows.sort_values("budget")
        style = styles[str(arm)]
        hover = []
        for line in rows.itertuples():
            tested = "not certified" if line.tested else "not tested: a larger budget is not certified"
            state = "certified" if line.certified else tested
            hover.append(
                [
                    f"{line.changed:.3g} of {line.prompts:,}",
                    sentences.share(line.risk),
                    sentences.share(line.upper),
                    state,
                ]
            )
        figure.add_scatter(
            x=rows["asked"],
            y=rows["risk"],
            name=str(arm),
            customdata=hover,
            mode="lines+markers",
            line={"color": style.colour, "dash": style.dash, "width": 1.5},
            marker={
                "symbol": [style.marker if certified else f"{style.marker}-open" for certified in rows["certified"]],
                "color": style.colour,
                "size": 11,
            },
            error_y={
                "type": "data",
                "symmetric": False,
                "array": rows["upper"] - rows["risk"],
                "thickness": 1.5,
                "width": 6,
                "arrayminus": [0.0] * len(rows),
                "color": style.colour,
            },
            hovertemplate=f"{arm} at %{{x}}: %{{customdata[0]}} (%{{customdata[1]}}), upper bound %{{customdata[2]}}"
            "<br>%{customdata[3]}<extra></extra>",
        )
    figure.add_hline(y=tolerance, line={"color": pick(HUES["red"], theme), "dash": "dash", "width": 1.5})
    figure.add_annotation(
        x=0,
        xref="paper",
        xanchor="left",
        y=tolerance,
        yanchor="bottom",
        text=f"tolerance {sentences.share(tolerance)}",
        showarrow=False,
        font={"size": 12, "color": QUIET[theme]},
    )
    title = "Risk by budget" if group == ALL else f"Risk by budget: {group}"
    finish(figure, title=title, x="budget, smaller to the left", y=AXES[frame.attrs["by"]], theme=theme, height=420)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order)
    top = float(max(min(1.0, TOLERANCES * tolerance), frame["risk"].max(), frame["upper"].max()) * ABOVE)
    return figure.update_yaxes(tickformat=".3~p", range=[-0.03 * top, top])


@risk_by_budget.caption
def describe_risk(frame: pd.DataFrame) -> str:
    """The smallest budget of each method that was found safe."""
    if not frame["certified"].any():
        return f"No smaller cache was found safe at a tolerance of {sentences.share(frame.attrs['tolerance'])}."
    safe = [
        f"{arm} {rows.loc[rows['certified'], 'asked'].iloc[-1] if rows['certified'].any() else 'none'}"
        for arm, rows in frame.sort_values("budget", ascending=False).groupby("arm", sort=False)
    ]
    return f"Smallest safe budget: {', '.join(safe)}."
