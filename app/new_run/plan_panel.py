"""What a comparison will take of this machine, before it starts: one line, and the parts behind it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.figures.export_menu import Offer, titled
from kvlab.common.formatting import format_bytes
from kvlab.planning import Plan
from kvlab.report.views import table_of

NOT_AT_ONCE = "Not all of it at the same time: each is as large as it gets in any phase."


def show_plan(plan: Plan | None, notes: Sequence[str] = ()) -> None:
    """The verdict with the time, and a table of parts; nothing where no plan can be made yet.

    `notes` say what of the methods such budgets leave.
    """
    for note in notes:
        st.warning(plain(note))
    if plan is None:
        return
    (st.caption if plan.fits else st.warning)(plain(plan.verdict))
    with st.expander("What it takes", key="plan"):
        st.caption(plain(f"Time, without loading: {plan.seconds or 'not known, as nothing has run here yet'}."))
        where = {"device": plan.machine.device, "host": "host", "disk": "disk"}
        table = pd.DataFrame(
            {"part": part.name, "where": where[part.place], "at most": format_bytes(part.bytes), "what it is": part.why}
            for part in plan.parts
        )
        of = f"{plan.model.name} · prompt of {plan.tokens:,} tokens · planned for {plan.machine.name}"
        offer = Offer("What the comparison takes", lambda: table_of(table), f"{plan.verdict} {NOT_AT_ONCE}", of)
        titled(offer, "plan-table")
        st.dataframe(table, hide_index=True, alt="One row a part: where it lies, and how large it gets")
        st.caption(NOT_AT_ONCE)
