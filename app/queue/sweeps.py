"""How far the sweep of an evaluation's folder is, from its files: whoever works on it needs no queue here."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from kvlab.common.errors import UserError
from kvlab.results.sources import EVAL_FOLDER
from kvlab.sweep.state import SweepState, is_sweep, state
from kvlab.trace.user_labels import may_view


def planned() -> list[str]:
    """Names of the evaluations that are sweeps and may be seen, in alphabetic order."""
    found = (folder.name for folder in _root().glob("*") if is_sweep(folder))
    return sorted(name for name in found if may_view(runs_root(), name, "evaluation"))


def any_at_work() -> bool:
    """Whether workers are at some sweep now, so that results change."""
    found = [_state(name) for name in planned()]
    return any(now is not None and now.left and now.at_work for now in found)


def sweep_progress(name: str) -> None:
    """A bar and a line for a sweep that is not done, a line for one that is, nothing for another evaluation."""
    if not is_sweep(_root() / name):
        return
    try:
        now = state(_root() / name)
    except UserError as error:
        st.warning(plain(str(error)))
        return
    if now.left:
        st.progress(now.there / max(1, now.planned), text=plain(f"Sweep: {now.words}"))
    else:
        st.caption(f":material/lan: {plain(f'Sweep: {now.words}')}")
    told = [*(f"Given up: {said}" for said in now.given_up.values()), *(now.refusals if now.left else [])]
    if told:
        with st.expander(f"What went wrong ({len(told)})"):
            for line in told:
                st.markdown(plain(line))


def _root() -> Path:
    return runs_root() / EVAL_FOLDER


def _state(name: str) -> SweepState | None:
    try:
        return state(_root() / name)
    except UserError:
        return None
