"""A button that queues what a card of the atlas needs, with how long it takes, and one for all that is missing."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.parts.links import go
from app.parts.quality_results import evaluation_rows
from app.parts.text import duration, plain
from app.state import runs_root, session_id
from kvlab import jobs
from kvlab.bench.request import BenchJob
from kvlab.errors import UserError
from kvlab.evaluate.request import EvalJob
from kvlab.jobs import from_command
from kvlab.jobs.from_command import Ordered

KEPT_ESTIMATES = 200
UNKNOWN = "how long is not known"


def order_button(command: str, key: str) -> None:
    """A button that queues what the command makes, its estimate beside it; nothing where only a terminal can do it."""
    try:
        ordered, seconds = _ordered(command, str(runs_root()), len(evaluation_rows()))
    except UserError as error:
        st.caption(plain(str(error)))
        return
    if st.button("Queue it", icon=":material/add_task:", key=f"order-{key}", help=f"Takes {words(seconds)}"):
        submit([ordered])


def order_all(commands: Sequence[str]) -> None:
    """A button that queues everything that is missing, with the total of what is known."""
    found: list[tuple[Ordered, tuple[float, float] | None]] = []
    for command in dict.fromkeys(commands):
        try:
            found.append(_ordered(command, str(runs_root()), len(evaluation_rows())))
        except UserError:
            continue  # its card says why
    if not found:
        return
    known = [seconds for _, seconds in found if seconds is not None]
    total = (sum(low for low, _ in known), sum(high for _, high in known)) if known else None
    unknown = len(found) - len(known)
    beside = f", and {unknown} of which {UNKNOWN}" if unknown and known else ""
    count = f"{len(found)} {'job' if len(found) == 1 else 'jobs'}"
    st.caption(plain(f"{count} would measure here, on mini, what the cards lack: {words(total)}{beside}."))
    if st.button(f"Queue all {len(found)}", icon=":material/playlist_add:", key="order-all"):
        submit([ordered for ordered, _ in found])


def words(seconds: tuple[float, float] | None) -> str:
    """`2 min 10 s to 5 min 40 s`."""
    return UNKNOWN if seconds is None else f"{duration(max(seconds[0], 1))} to {duration(max(seconds[1], 1))}"


def submit(orders: Sequence[Ordered]) -> None:
    """Queue them all and go to the first one's progress."""
    try:
        ids = [jobs.submit(runs_root(), ordered.work, session_id()) for ordered in orders]
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    first = orders[0].work
    go("quality" if isinstance(first, EvalJob) else "speed" if isinstance(first, BenchJob) else "new_run", job=ids[0])


@st.cache_resource(max_entries=KEPT_ESTIMATES, show_spinner=False)
def _ordered(command: str, root: str, seen: int) -> tuple[Ordered, tuple[float, float] | None]:
    ordered = from_command.order(command)
    return ordered, from_command.estimate(ordered, evaluation_rows(), runs_root())
