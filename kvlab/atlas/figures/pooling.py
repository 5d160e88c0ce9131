"""Windows of tokens pooled to one slot, over the text, as the steps go on."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from kvlab.figures.base.animation import frames_of, with_slider
from kvlab.figures.base.palette import HUES, SURFACES, Theme, mix, pick
from kvlab.figures.base.template import finish
from kvlab.figures.base.words import drawn_of, plural

MOST_EDGES = 120  # more bars are too narrow for an edge
MOST_DEEP = 6  # colours end here; the height of a bar goes on


def windows(spans: Mapping[int, pd.DataFrame], theme: Theme = "light") -> go.Figure:
    """Every slot of a head as a bar over the tokens it stands for, higher the more often they were pooled.

    `spans` holds `analysis.pooling.spans` of each step that is shown; the slider moves between them.
    """
    steps = list(spans)
    bars = [_bars(spans[step], theme) for step in steps]
    deepest = max(int(table["generation"].max()) for table in spans.values())
    figure = go.Figure(bars[-1], frames=frames_of(steps, [[bar] for bar in bars]))
    end = max(int(table["last"].max()) for table in spans.values())
    finish(figure, title="Windows of tokens that share a slot", x="position in the text",
           y="least times pooled", theme=theme, height=330, legend=False)  # fmt: skip
    figure.update_yaxes(range=[-0.6, deepest + 0.7], dtick=1).update_xaxes(range=[-0.01 * end, 1.01 * end])
    return with_slider(figure, "step ", len(steps) - 1, theme)


def read_windows(spans: Mapping[int, pd.DataFrame], most: int, steps: int) -> str:
    """The last step's slots in words; at most `most` of them are drawn, and some of `steps` steps."""
    step, table = list(spans.items())[-1]
    pooled = table[table["tokens"] > 1]
    largest = f", the largest for {pooled['tokens'].max():,}" if len(pooled) else ""
    return (
        f"After step {step}, {len(pooled):,} of {plural(len(table), 'slot')} stand for "
        f"{plural(pooled['tokens'].sum(), 'pooled token')}{largest}; the deepest was pooled at least "
        f"{plural(table['generation'].max(), 'time')}.{drawn_of(most, len(table), 'slot', 'of the most tokens')}"
        f"{drawn_of(len(spans), steps, 'step', 'evenly chosen')}"
    )


def _bars(spans: pd.DataFrame, theme: Theme) -> go.Bar:
    shallow, deep = pick(HUES["sky"], theme), pick(HUES["red"], theme)
    shares = spans["generation"].clip(upper=MOST_DEEP) / MOST_DEEP
    return go.Bar(
        x=spans["last"] - spans["first"] + 1, base=spans["first"] - 0.5, y=spans["generation"], orientation="h",
        width=0.75,
        marker={
            "color": [mix(shallow, deep, share) for share in shares],
            "line": {"width": 0.6 if len(spans) <= MOST_EDGES else 0, "color": SURFACES[theme]},
        },
        customdata=spans[["position", "tokens"]].to_numpy(),
        hovertemplate="slot %{customdata[0]}: %{customdata[1]} tokens from %{base:.0f}, pooled at least %{y} times"
        "<extra></extra>",
    )  # fmt: skip
