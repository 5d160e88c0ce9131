"""Spans of a prompt over budgets: a panel per span, with what each method has left of it after the prompt."""

from __future__ import annotations

from itertools import chain

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvlab.figures.board import no_fading
from kvlab.figures.prompt_spans import caption_spans, cell_words, moment_of
from kvlab.figures.simple import comparison as simple
from kvlab.views.base.caption import with_simple
from kvlab.views.base.palette import SURFACES, Theme, run_styles
from kvlab.views.base.template import QUIET, finish
from kvlab.views.base.words import visible

# panels side by side; pixels of one from top to bottom
PANELS = 4
PANEL = 190


def spans_over_budgets(frame: pd.DataFrame, theme: Theme = "light") -> go.Figure:
    """A panel per span: the share held by the slots that are left after the prompt, a line per method.

    `frame` is that of `span_map`. A filled mark is a right answer, an open one another or an unknown one.
    """
    drawn = frame[frame["method"] != "full"]
    spans = drawn.drop_duplicates("span")
    across = min(PANELS, len(spans))
    down = -(-len(spans) // across)
    # Counted from the bottom, so that the first axis is one with a title.
    titles = [f"{visible(span.span, 26).replace('·', ' ')} ({span.tokens:,})" for span in spans.itertuples()]
    by_row = [titles[at : at + across] + [""] * (at + across - len(titles)) for at in range(0, len(titles), across)]
    figure = make_subplots(
        down,
        across,
        subplot_titles=[*chain(*by_row[::-1])],
        start_cell="bottom-left",
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=min(0.3, 0.34 / down),
    )
    styles = run_styles(drawn[["row", "method"]].itertuples(index=False, name=None), theme)
    for place, span in enumerate(spans["span"]):
        at = {"row": down - place // across, "col": place % across + 1}
        for row, style in styles.items():
            line = drawn[(drawn["span"] == span) & (drawn["row"] == row)].sort_values("slots")
            fill = [style.colour if verdict == "right" else SURFACES[theme] for verdict in line["verdict"]]
            figure.add_scatter(
                x=100 * line["slots"],
                y=100 * line["held"],
                name=row,
                legendgroup=row,
                showlegend=place == 0,
                mode="lines+markers",
                line={"color": style.colour, "dash": style.dash, "width": 1.8},
                marker={"symbol": style.marker, "size": 8, "color": fill, "line": {"color": style.colour, "width": 2}},
                customdata=[[cell.run_id, cell.first, cell_words(cell)] for cell in line.itertuples()],
                hovertemplate="%{customdata[2]}<extra></extra>",
                **at,
                **no_fading(),
            )
    finish(
        figure,
        title=f"What is left of each part of the prompt {moment_of(frame)}, by budget",
        x="",
        y="",
        theme=theme,
        height=150 + PANEL * down,
    )
    figure.update_xaxes(rangemode="tozero", title_standoff=4).update_yaxes(range=[-6, 106])
    for place in range(max(0, len(spans) - across), len(spans)):  # the last of each column
        at = {"row": down - place // across, "col": place % across + 1}
        figure.update_xaxes(title_text="slots left of the prompt (%)", showticklabels=True, **at)
    figure.update_yaxes(title_text="held (%)", col=1)
    figure.update_annotations(font={"size": 12, "color": QUIET[theme]})
    figure.update_layout(clickmode="event+select", dragmode=False, margin_t=104)
    return figure.update_layout(legend_y=1 + 36 / (PANEL * down))


@with_simple(simple.spans)
def caption_spans_over_budgets(frame: pd.DataFrame) -> str:
    """As `caption_spans`, and what the marks say."""
    marks = " A filled mark is a right answer." if (frame["verdict"] != "").any() else ""
    return f"{caption_spans(frame)}{marks}"
