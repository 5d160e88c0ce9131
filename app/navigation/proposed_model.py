"""The model that a form proposes: that of the comparison in view."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st
from streamlit.errors import StreamlitAPIException

from app.navigation.selection import wanted_comparison
from app.session.open_runs import runs_root
from app.session.url_state import current_page, params, set_param
from kvlab.core.errors import UserError
from kvlab.library.items import split_joint_id
from kvlab.models.info.names import check_model
from kvlab.trace.catalogue import list_comparisons

PROPOSED_ON = "model_proposed_on"  # the page with the last such field


def propose_model(key: str, last: str = "") -> None:
    """Fill in the model field `key`, unless the URL or the user set it; call before the field is drawn.

    The value then is in the URL, so that the address means the same elsewhere. `last` is the model of the last such
    form: it comes before a comparison that nobody chose.
    """
    # New and Live name their fields alike, and the session has the other page's value until this one is drawn.
    is_new = st.session_state.get(PROPOSED_ON) != current_page()
    st.session_state[PROPOSED_ON] = current_page()
    if key not in params() and (is_new or key not in st.session_state) and (model := _model_in_view(last)):
        st.session_state[key] = model
        with suppress(StreamlitAPIException):  # a field of this name was drawn before, and writes the URL itself
            set_param(key, model)


def _model_in_view(last: str) -> str:
    """The model of the comparison that was chosen, else `last`, else that of the newest comparison; "" if none can be
    loaded.
    """
    try:
        comparisons = list_comparisons(runs_root())
    except UserError:
        comparisons = []
    wanted = wanted_comparison(comparisons) or ""
    ids = split_joint_id(wanted) or [wanted]
    chosen = [entry.runs[0].model for entry in comparisons if entry.comparison_id in ids]
    newest = [entry.runs[0].model for entry in comparisons[:1]]
    return next((name for name in (*chosen, last, *newest) if _is_valid(name)), "")


def _is_valid(name: str) -> bool:
    try:
        return check_model(name) != ""
    except UserError:
        return False
