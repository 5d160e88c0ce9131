"""The home view of a comparison: quality against bytes, and the slider of its budget."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import code
from app.base.theme import theme as page_theme
from app.base.widgets import one_of
from app.figures.figure import show
from app.session.url_state import drop_stale_option, get_param, in_url
from kvlab.views import trade_off as figures
from kvlab.views.base.provenance import FigureSource
from kvlab.views.frames.trade_off import HELD, READ, at_budget, compared_budgets, reads_less

ALL = "all"
MOST_RUNS = 12  # compressed runs that are shown together before a budget is chosen


def budget_slider(points: pd.DataFrame) -> str:
    """The budget that the page shows, "" for all of them; a slider in the URL where the comparison has several."""
    budgets = compared_budgets(points)
    if len(budgets) < 2:
        return ""
    options = [ALL, *budgets]
    if (wanted := get_param("budget")) is not None and wanted not in options:
        st.warning(f"This comparison has no budget {code(wanted)}: it has {', '.join(budgets)}.")
    drop_stale_option("budget", options)
    runs = int((points["method"] != "full").sum())
    words = "Drag it: the board, the charts and the texts below show the methods at this budget."
    # One chart cannot tell more runs apart, so the page opens at the smallest budget.
    first = ALL if runs <= MOST_RUNS else budgets[0]
    label = f"Budget ({', '.join(budgets)})"
    chosen = st.select_slider(label, options, first, help=words, width=420, **in_url("budget"))
    return "" if chosen == ALL else chosen


def bytes_axis() -> str:
    """Which bytes the figure compares; in the URL."""
    return one_of("Compare by", {HELD: "bytes held", READ: "bytes read"}, key="by")


def home_view(points: pd.DataFrame, budget: str, source: FigureSource) -> bool:
    """Draw quality against bytes; returns whether it was drawn."""
    known = points[(points["method"] != "full") & points["quality"].notna() & points["live_bytes"].notna()]
    if known.empty or not len(at_budget(known, budget)):
        return False
    axis = bytes_axis() if reads_less(points) else HELD
    figure = figures.quality_against_bytes(points, page_theme(), budget, axis)
    caption = figures.caption_quality_against_bytes(points, budget, axis)
    return show(figure, points, caption, "compare-trade", "quality-against-bytes", source)
