"""A switch on forms of a shared server: whether what is asked for is seen by others."""

from __future__ import annotations

import streamlit as st

from kvlab.server.settings import lab


def private_switch(key: str = "private") -> bool:
    """Whether it is to be private; in a lab of one there is no switch, and nothing is."""
    return lab() is not None and st.toggle(
        "Private", key=key, bind="query-params", help="You and the administrators alone see what it makes."
    )
