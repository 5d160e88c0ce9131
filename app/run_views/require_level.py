"""The run of a page that needs more than was recorded of every run: what is missing is said in its place."""

from __future__ import annotations

from app.navigation.selection import Prefer, current_run
from app.run_views import page, view
from kvlab.trace.reader import Run


def full_run(prefer: Prefer, missing: str) -> Run | None:
    """The run that is looked at, recorded in full; None, with a sentence, where `missing` was left out of it."""
    run = current_run(prefer)
    if run is None:
        return None
    page.explain_status(run)
    if run.record.level != "full":
        page.explain_level(run, missing)
        return None
    return None if view.nothing_recorded(run) else run


def run_with_steps(prefer: Prefer = "any") -> Run | None:
    """The run that is looked at, with its steps; None, with a sentence, where none were recorded."""
    run = current_run(prefer)
    if run is None:
        return None
    page.explain_status(run)
    if run.steps.empty:
        page.explain_level(run, "everything this page shows")
        return None
    return run
