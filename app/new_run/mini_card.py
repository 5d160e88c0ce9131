"""What to expect of mini, beside its name: the questions it was taught, and what it cannot do."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.figures.export_menu import Offer, titled
from kvlab.models.mini.card import cannot_do, taught
from kvlab.report.views import table_of


def mini_card() -> None:
    """One sentence, and behind it the wordings and the card's own words."""
    st.caption("mini answers questions in the wordings it was taught; in others it often fails, with a full cache too.")
    with st.expander("The wordings mini was taught, and what it cannot do", key="mini_card"):
        table = pd.DataFrame(
            {"asks for": one.kind, "the text says": _line(one.statement), "it ends with": _line(one.question)}
            for one in taught()
        )
        offer = Offer("What mini was taught", lambda: table_of(table), cannot_do(), "mini's model card")
        titled(offer, "mini-taught")
        st.dataframe(table, hide_index=True, alt="One row a wording that mini was taught")
        st.caption(plain(cannot_do()))


def _line(text: str) -> str:
    return " ⏎ ".join(line.strip() for line in text.strip().splitlines())
