"""What a comparison will take of this machine, before it starts: one line, and the parts behind it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.parts.text import plain
from kvlab.planning import Plan
from kvlab.planning.parts import in_words


def show_plan(plan: Plan | None) -> None:
    """The verdict with the time, and a table of parts; nothing where no plan can be made yet."""
    if plan is None:
        return
    (st.caption if plan.fits else st.warning)(plain(plan.verdict))
    with st.expander("What it takes", key="plan"):
        st.caption(plain(f"Time, without loading: {plan.seconds or 'not known, as nothing has run here yet'}."))
        where = {"device": plan.machine.device, "host": "host", "disk": "disk"}
        rows = [
            {"part": part.name, "where": where[part.place], "at most": in_words(part.bytes), "what it is": part.why}
            for part in plan.parts
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True)
        st.caption("Not all of it at the same time: each is as large as it gets in any phase.")
