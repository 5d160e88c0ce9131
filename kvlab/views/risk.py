"""Risk of a change against the budget, with upper bounds and the tolerance."""

import pandas as pd
import plotly.graph_objects as go

from kvlab.views.base.palette import HUES, Theme, pick, run_styles
from kvlab.views.base.template import QUIET, finish

TOLERANCES = 4  # the axis has room for as many at least
ABOVE = 1.06


def risk_against_budget(
    table: pd.DataFrame, tolerance: float, what: str, theme: Theme = "light", where: str = ""
) -> go.Figure:
    """A line per method through the observed risks, with bars up to the bounds; certified budgets are filled.

    `table` is one group's, as of `SafeBudgets`: columns arm, method, asked, budget, prompts, changed, risk, upper,
    tested, certified. `what` is the axis title.
    """
    figure = go.Figure()
    order = table.sort_values("budget").drop_duplicates("asked")["asked"].tolist()
    styles = run_styles(table[["arm", "method"]].itertuples(index=False, name=None), theme)
    for arm, arm_rows in table.groupby("arm", sort=False):
        rows = arm_rows.sort_values("budget")
        style = styles[str(arm)]
        hover = []
        for line in rows.itertuples():
            tested = "not certified" if line.tested else "not tested: a larger budget is not certified"
            state = "certified" if line.certified else tested
            hover.append([f"{line.changed:.3g} of {line.prompts:,}", _share(line.risk), _share(line.upper), state])
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
        text=f"tolerance {_share(tolerance)}",
        showarrow=False,
        font={"size": 12, "color": QUIET[theme]},
    )
    title = f"Risk by budget{f': {where}' if where else ''}"
    finish(figure, title=title, x="budget, smaller to the left", y=what, theme=theme, height=420)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order)
    top = float(max(min(1.0, TOLERANCES * tolerance), table["risk"].max(), table["upper"].max()) * ABOVE)
    return figure.update_yaxes(tickformat=".3~p", range=[-0.03 * top, top])


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def caption_risk_against_budget(table: pd.DataFrame, tolerance: float) -> str:
    """The smallest budget of each method that was found safe."""
    if not table["certified"].any():
        return f"No smaller cache was found safe at a tolerance of {_share(tolerance)}."
    safe = [
        f"{arm} {rows.loc[rows['certified'], 'asked'].iloc[-1] if rows['certified'].any() else 'none'}"
        for arm, rows in table.sort_values("budget", ascending=False).groupby("arm", sort=False)
    ]
    return f"Smallest safe budget: {', '.join(safe)}."
