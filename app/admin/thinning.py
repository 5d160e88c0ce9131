"""Make room on the page of the administrator: the arrays of old recordings go, tables and texts stay."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_bytes
from kvlab.server.disk_quota import disk_rules
from kvlab.trace.thinning import DAY, thin, thinnable


def thinning() -> None:
    """What would go of recordings older than the days asked for, and a button, asked twice, that lets it go."""
    st.subheader("Old recordings")
    try:
        rule = disk_rules().thin_older_than
        days = st.number_input(
            "Older than … days", 0, 3650, round(rule / DAY) if rule else 30, key="thin_days", width=200
        )
        found = thinnable(runs_root(), days * DAY)
    except UserError as error:
        st.error(plain(str(error)))
        return
    size = format_bytes(sum(run.bytes for run in found))
    st.caption(
        f"{len(found):,} recordings have arrays (keys, values, attention rows) of {size} together. Without them the "
        "pages show tables, texts, memory and speed, and say what is gone. Starred comparisons are left alone."
    )
    if not found:
        return
    with st.popover(f"Thin {len(found):,}", icon=":material/compress:"):
        st.markdown("The arrays cannot be brought back; a recording can only be made again.")
        if st.button(f"Remove {size} of arrays", type="primary", key="thin"):
            try:
                freed = thin(runs_root(), found)
            except UserError as error:
                st.error(plain(str(error)))
                return
            st.success(f"{format_bytes(freed)} freed.")
