"""The memory and disk that a comparison will need: a sentence, and a table of the parts."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.figures.export_menu import Offer, show_title
from kvlab.common.formatting import format_bytes
from kvlab.common.model_title import model_title
from kvlab.planning import Plan
from kvlab.report.views import table_of

NOT_AT_ONCE = "The parts are not all needed at the same time: each is its maximum over all phases."


def show_plan(plan: Plan) -> None:
    """The verdict, and a table of parts."""
    st.caption(plain(plan.verdict))
    where = {"device": plan.machine.device, "host": "host", "disk": "disk"}
    table = pd.DataFrame(
        {"part": part.name, "where": where[part.place], "at most": format_bytes(part.bytes), "purpose": part.why}
        for part in plan.parts
    )
    of = f"{model_title(plan.model.name)} · prompt of {plan.tokens:,} tokens · planned for {plan.machine.name}"
    offer = Offer("Memory and disk of the comparison", lambda: table_of(table), f"{plan.verdict} {NOT_AT_ONCE}", of)
    show_title(offer, "plan-table")
    st.dataframe(table, hide_index=True, alt="One row per part: its place and maximum size")
    st.caption(NOT_AT_ONCE)
