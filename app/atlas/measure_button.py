"""A button that queues the jobs a card of the atlas needs, with their estimated time, and one for all cards."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.text import duration, plain
from app.evaluation.result_rows import measured_rows
from app.navigation.selection import runs_root
from app.queue.submit import submitted
from kvlab import jobs
from kvlab.atlas.fill import commands_of
from kvlab.bench.request import BenchJob
from kvlab.common.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.forms import command_to_request
from kvlab.forms.command_to_request import Ordered
from kvlab.forms.fill_atlas import Small, filling
from kvlab.jobs.access_check import under_own_name
from kvlab.results.shipped import shipped
from kvlab.results.sources import Sources

CACHED_ESTIMATES = 200
FILLS = "atlas fill --only "
Estimated = tuple[Ordered, tuple[float, float] | None]
UNKNOWN = "an unknown time"


def order_button(command: str, key: str) -> None:
    """A button that queues the command's jobs, with their estimated time; nothing if only a terminal can run it."""
    try:
        found = _ordered((command,), FILLS in command, str(runs_root()), len(measured_rows("evaluations")))
    except UserError as error:
        st.caption(plain(str(error)))
        return
    takes = f"Takes {words(total(found))}"
    if permission.button("Queue it", permission.why_not(), icon=":material/add_task:", key=f"order-{key}", help=takes):
        submit([ordered for ordered, _ in found])


def order_all(commands: Sequence[str]) -> None:
    """A button that queues small versions of all missing jobs, with their total time."""
    possible = tuple(command for command in dict.fromkeys(commands) if _is_possible(command))
    if not possible:
        return
    found = _ordered(possible, True, str(runs_root()), len(measured_rows("evaluations")))
    unknown = sum(seconds is None for _, seconds in found)
    note = f", and {UNKNOWN} for {unknown} of them" if 0 < unknown < len(found) else ""
    count = f"{len(found)} {'job' if len(found) == 1 else 'jobs'}"
    small = Small()
    size = f"{small.prompts} recorded texts, {small.samples} prompts of {small.lengths[0]} tokens per task"
    st.caption(
        plain(f"{count} can measure on mini what the cards lack ({size}). This takes {words(total(found))}{note}.")
    )
    if permission.button(
        f"Queue all {len(found)}", permission.why_not(), icon=":material/playlist_add:", key="order-all"
    ):
        submit([ordered for ordered, _ in found])


def total(found: Sequence[Estimated]) -> tuple[float, float] | None:
    """The sum of the known estimates."""
    ranges = [seconds for _, seconds in found if seconds is not None]
    return (sum(low for low, _ in ranges), sum(high for _, high in ranges)) if ranges else None


def words(seconds: tuple[float, float] | None) -> str:
    """`2 min 10 s to 5 min 40 s`."""
    return UNKNOWN if seconds is None else f"{duration(max(seconds[0], 1))} to {duration(max(seconds[1], 1))}"


def submit(orders: Sequence[Ordered]) -> None:
    """Queue all jobs and show the progress of the first."""
    try:
        ids = [submitted(under_own_name(runs_root(), ordered.work)) for ordered in orders]
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    first = orders[0].work
    go("quality" if isinstance(first, EvalJob) else "speed" if isinstance(first, BenchJob) else "new_run", job=ids[0])


def _is_possible(command: str) -> bool:
    """Whether the dashboard can queue the command; if not, its card says why."""
    try:
        command_to_request.order(command)
    except UserError:
        return False
    return True


@st.cache_resource(max_entries=CACHED_ESTIMATES, show_spinner=False)
def _ordered(commands: tuple[str, ...], small: bool, root: str, measured: int) -> list[Estimated]:
    if small and FILLS in commands[0]:
        commands = tuple(commands_of(runs_root(), [commands[0].split(FILLS)[1].split()[0]]))
    ordered = filling(commands, Small()) if small else [command_to_request.order(command) for command in commands]
    rows = _measured()
    return [(job, command_to_request.estimate(job, rows, runs_root())) for job in ordered]


def _measured() -> pd.DataFrame:
    """The time per token of each method, from the user's own evaluations or those shipped with kvlab."""
    own, ships = measured_rows("evaluations"), shipped()
    return own if len(own) or ships is None else Sources(runs_root(), shipped=ships).evaluations
