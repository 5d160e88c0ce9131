"""The progress of sweeps, read from their folders: their workers need no queue here."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.base.text import plain
from app.navigation.selection import runs_root
from kvlab.core.errors import UserError
from kvlab.results.sources import EVAL_FOLDER
from kvlab.sweep.status import SweepStatus, is_sweep, read_status
from kvlab.trace.user_labels import may_view


def sweep_names() -> list[str]:
    """Names of the evaluations that are sweeps and visible to the user, in alphabetical order."""
    names = (folder.name for folder in _root().glob("*") if is_sweep(folder))
    return sorted(name for name in names if may_view(runs_root(), name, "evaluation"))


def any_at_work() -> bool:
    """Whether workers are running some sweep, so that results change."""
    states = map(_state, sweep_names())
    return any(sweep is not None and sweep.left and sweep.running for sweep in states)


def sweep_progress(name: str) -> None:
    """The progress of a sweep and its errors; nothing for other evaluations."""
    if not is_sweep(_root() / name):
        return
    try:
        now = read_status(_root() / name)
    except UserError as error:
        st.warning(plain(str(error)))
        return
    if now.left:
        st.progress(now.measured / max(1, now.planned), text=plain(f"Sweep: {now.summary}"))
    else:
        st.caption(f":material/lan: {plain(f'Sweep: {now.summary}')}")
    errors = [*now.notes, *(now.errors if now.left else [])]
    if errors:
        with st.expander(f"Errors ({len(errors)})"):
            for line in errors:
                st.markdown(plain(line))


def _root() -> Path:
    return runs_root() / EVAL_FOLDER


def _state(name: str) -> SweepStatus | None:
    try:
        return read_status(_root() / name)
    except UserError:
        return None
