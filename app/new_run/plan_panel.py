"""The memory that a comparison will need: a sentence, and a table of the parts."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.figures.export_menu import Offer, show_title
from kvlab.common.formatting import format_bytes, model_title
from kvlab.planning.plan import Plan
from kvlab.report.views import table_of

ON_TOP = "Working memory of the kernels and recordings come on top."


def show_plan(plan: Plan) -> None:
    """The verdict, and a table of parts."""
    st.caption(plain(plan.verdict))
    table = pd.DataFrame(
        {"part": part.name, "bytes": format_bytes(part.bytes), "what it is": part.why} for part in plan.parts
    )
    of = f"{model_title(plan.model.name)} · prompt of {plan.tokens:,} tokens · planned for {plan.machine.name}"
    offer = Offer("Memory of the comparison", lambda: table_of(table), f"{plan.verdict} {ON_TOP}", of)
    show_title(offer, "plan-table")
    st.dataframe(table, hide_index=True, alt="One row per part and its size")
    st.caption(ON_TOP)
