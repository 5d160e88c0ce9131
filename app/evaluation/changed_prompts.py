"""The prompts that change under a compressed cache, flips, and the tables of the page Safe budget."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.evaluation.quality_results import record, sample_of
from app.figures.export_menu import Offer, show_title
from app.navigation.selection import runs_root
from app.session.url_state import drop_stale_option, in_url
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.evaluate.request import SampleJob
from kvlab.report.views import table_of
from kvlab.results.risk.losses import flips, overlap
from kvlab.results.risk.safe_budget import SafeBudgets
from kvlab.views.base.provenance import Provenance

MOST_PROMPTS = 500
CHANGED = {
    "group": "group", "index": "prompt", "arm": "method", "asked": "budget", "loss": "loss", "answer": "answer",
    "reference_text": "full cache's text", "prediction": "compressed cache's text", "kl": "KL, nats per token",
    "error": "error of the metric",
}  # fmt: skip
FLIPS = {
    "arm": "method", "asked": "budget", "prompts": "prompts", "worse": "right to wrong", "better": "wrong to right",
}  # fmt: skip
PAIRS = {
    "asked": "budget", "one": "method", "other": "and", "worse_one": "changed by the first",
    "worse_other": "by the second", "common": "by both", "shared": "in common %",
}  # fmt: skip


def show_changed_prompts(found: SafeBudgets, origin: Provenance) -> None:
    """The prompts that change, and a button that opens the autopsy of one."""
    st.header("The prompts that change")
    every = found.changed
    if every.empty:
        st.caption("No prompt changes at any budget of the ladder.")
        return
    left, right = st.columns(2)
    arms = every["arm"].drop_duplicates().tolist()
    drop_stale_option("changed_arm", arms)
    arm = left.selectbox("Method", arms, **in_url("changed_arm"))
    budgets = every.loc[every["arm"] == arm, "asked"].drop_duplicates().tolist()
    drop_stale_option("changed_at", budgets)
    at = right.selectbox("Budget", budgets, **in_url("changed_at"))
    own = every[(every["arm"] == arm) & (every["asked"] == at)].head(MOST_PROMPTS)
    shown = own.assign(index=own["index"] + 1, answer=own["answer"].where(own["answer"] != "[]"))
    # By KL every cache reads the full cache's text.
    names = {name: words for name, words in CHANGED.items() if found.criterion.by != "kl" or name != "prediction"}
    places = offered_table(f"Prompts that change: {arm} at {at}", shown, names, "changed-table", origin, picks=True)
    row = own.iloc[places[0] if places and places[0] < len(own) else 0]
    which = "the chosen prompt" if places else "the first prompt"
    try:
        recorded = _recorded(row)
    except UserError as error:
        st.caption(plain(str(error)))
        return
    if recorded is not None:
        if st.button(f"Open the autopsy of {which}", icon=":material/search_insights:", key="open_recorded"):
            go("quality", sample=recorded)
    elif st.button(
        f"Record {which} and open its autopsy",
        icon=":material/search_insights:",
        key="record_changed",
    ):
        record(row)


def _recorded(row: pd.Series) -> str | None:
    """The job that recorded this prompt with this method and budget, if any. Raises UserError as `sample_of`."""
    wanted = sample_of(row)
    for status in jobs.list_jobs(runs_root()):
        if status.state == "complete":
            request = jobs.request_of(runs_root(), status.job_id)
            if isinstance(request, SampleJob) and (request.request, request.content) == (
                wanted.request,
                wanted.content,
            ):
                return status.job_id
    return None


def flip_tables(found: SafeBudgets, origin: Provenance) -> None:
    """How many prompts flip in each direction, and how much methods have in common."""
    st.header("Flips")
    if found.criterion.by in ("answer", "score"):
        st.caption(
            "Right to wrong: right with the full cache only. Wrong to right: right with the compressed cache only."
        )
        names = FLIPS
    else:
        names = {**{name: FLIPS[name] for name in ("arm", "asked", "prompts")}, "worse": "changed"}
    offered_table("Prompts that flip", flips(found.paired), names, "flips-table", origin)
    pairs = overlap(found.paired)
    if len(pairs):
        title = "Changed prompts that two methods have in common"
        st.caption("In common: of the prompts that change under either method, the share that changes under both.")
        offered_table(title, as_percent(pairs, ("shared",)), PAIRS, "overlap-table", origin)


def as_percent(frame: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    """The frame with these shares in percent."""
    return frame.assign(**{name: (100 * frame[name].astype(float)).round(3) for name in names})


def offered_table(
    title: str, frame: pd.DataFrame, names: dict[str, str], key: str, origin: Provenance, picks: bool = False
) -> list[int]:
    """A table with its export menu; returns the selected rows if it `picks`."""
    shown = frame[list(names)].rename(columns=names).dropna(axis="columns", how="all")
    show_title(Offer(title, partial(table_of, shown), source=origin), key)
    if not picks:
        st.dataframe(shown, hide_index=True, height=_height(shown), alt=title)
        return []
    picked = st.dataframe(
        shown,
        hide_index=True,
        height=_height(shown),
        key=f"{key}-rows",
        on_select="rerun",
        selection_mode="single-row",
        alt=title,
    )
    return list(picked.selection.rows)


def _height(shown: pd.DataFrame) -> int:
    return 38 + 35 * min(max(len(shown), 1), 9)
