"""Safe budgets of an evaluation: the answer, the risk by budget, the prompts that change, and flips."""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.base.widgets import one_of
from app.evaluation.quality_results import chosen_rows, sample_of
from app.evaluation.result_rows import measured_rows
from app.figures.export_menu import Offer, show_title
from app.figures.figure import show_view
from app.navigation.selection import runs_root
from app.queue.job_panel import queue_and_open
from app.session.url_state import drop_stale_option, in_url
from kvlab import jobs
from kvlab.core import FULL, UserError
from kvlab.evaluation.request import EvalJob, SampleJob
from kvlab.papers.evaluations import origin_of
from kvlab.report.views import table_of
from kvlab.results.quality_tables import answer_texts, label_rows
from kvlab.results.risk import sentences
from kvlab.results.risk.export import NOT_MEASURABLE, as_json, risk_table
from kvlab.results.risk.losses import KL_ABOVE, Measure, flips, measurable, measured_by, overlap
from kvlab.results.risk.safe_budget import ALL, Criterion, SafeBudgets, find_safe_budgets
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
    prompts = every[(every["arm"] == arm) & (every["asked"] == at)].head(MOST_PROMPTS)
    shown = prompts.assign(index=prompts["index"] + 1, answer=answer_texts(prompts))
    # By KL every cache reads the full cache's text.
    names = {name: words for name, words in CHANGED.items() if found.criterion.by != "kl" or name != "prediction"}
    places = offered_table(f"Prompts that change: {arm} at {at}", shown, names, "changed-table", origin, picks=True)
    row = prompts.iloc[places[0] if places and places[0] < len(prompts) else 0]
    which = "the chosen prompt" if places else "the first prompt"
    try:
        # The job that recorded this prompt with this method and budget, if any.
        wanted = sample_of(row)
        complete = (job.job_id for job in jobs.list_jobs(runs_root()) if job.state == "complete")
        requests = ((job_id, jobs.request_of(runs_root(), job_id)) for job_id in complete)
        recorded = next(
            (
                job_id
                for job_id, request in requests
                if isinstance(request, SampleJob)
                and (request.request, request.content) == (wanted.request, wanted.content)
            ),
            None,
        )
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
        queue_and_open("quality", partial(sample_of, row), "sample")


def as_percent(frame: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    """The frame with these shares in percent, with as many digits as the sentences beside it."""
    return frame.assign(**{name: [float(f"{100 * share:.3g}") for share in frame[name]] for name in names})


def offered_table(
    title: str, frame: pd.DataFrame, names: dict[str, str], key: str, origin: Provenance, picks: bool = False
) -> list[int]:
    """A table with its export menu; returns the selected rows if it `picks`."""
    shown = frame[list(names)].rename(columns=names).dropna(axis="columns", how="all")
    show_title(Offer(title, partial(table_of, shown), source=origin), key)
    selecting: dict[str, Any] = (
        {"key": f"{key}-rows", "on_select": "rerun", "selection_mode": "single-row"} if picks else {}
    )
    height = 38 + 35 * min(max(len(shown), 1), 9)
    picked: Any = st.dataframe(shown, hide_index=True, height=height, alt=title, **selecting)
    return list(picked.selection.rows) if picks else []


WAYS: dict[Measure, str] = {
    "answer": "the right answer is lost",
    "score": "the score falls",
    "text": "the text differs",
    "kl": "the KL is above",
}
TABLE = {
    "arm": "method", "asked": "budget", "prompts": "prompts", "changed": "changed", "risk": "risk %",
    "upper": "upper bound %", "p_value": "p", "certified": "safe", "kept": "tokens kept %", "bytes": "bytes %",
}  # fmt: skip
SHARES = ("risk", "upper", "kept", "bytes")


@st.cache_resource(max_entries=16, show_spinner="Certifying")
def _found(_rows: pd.DataFrame, criterion: Criterion, methods: tuple[str, ...], key: tuple) -> SafeBudgets | str:
    """The result, or why there is none; both are cached."""
    try:
        return find_safe_budgets(_rows, criterion, methods, show_too_few=True)
    except UserError as error:
        return str(error)


def results(name: str | None = None) -> None:
    """The pickers and the result of one evaluation; `name` is that of a job."""
    rows = chosen_rows(measured_rows("every_evaluation"), name)
    if rows.empty:
        return
    working = (jobs.request_of(runs_root(), job.job_id) for job in jobs.list_jobs(runs_root()) if not job.ended)
    if any(isinstance(request, EvalJob) and request.name == str(rows["name"].iloc[0]) for request in working):
        st.info(
            "This evaluation is being measured. The guarantee is worked out once, when it is complete: looking at it "
            "again and again and stopping when it looks good would make it untrue."
        )
        return
    if (rows["method"] == FULL.method).all():
        st.info("Only the full cache is evaluated so far: nothing can be certified yet.")
        return
    ways = measurable(rows)
    if not ways:
        st.info(NOT_MEASURABLE)
        return
    # The measure of change, tolerance, confidence, methods and groups.
    proposed = sentences.tolerance_for(rows)
    left, one, two, three = st.columns([3, 1, 1, 1], vertical_alignment="bottom")
    with left:
        by = one_of("A prompt has changed if", {way: WAYS[way] for way in ways}, key="changed_by")
    tolerance = one.number_input(
        "At most, %",
        0.1,
        99.0,
        round(100 * proposed, 1),
        step=1.0,
        **in_url("tolerance"),
        help="Proposed: the smallest usual tolerance that so many prompts and methods can certify, whatever they show",
    )
    confidence = two.number_input("Confidence, %", 50.0, 99.9, 95.0, step=1.0, **in_url("confidence"))
    above = KL_ABOVE
    if by == "kl":
        above = float(three.number_input("KL above, nats per token", 0.0, 20.0, KL_ABOVE, **in_url("kl_above")))
    compared = measured_by(rows, by)
    arms = label_rows(compared[compared["method"] != FULL.method])["arm"].drop_duplicates().tolist()
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    drop_stale_option("safe_methods", arms)
    chosen = left.multiselect("Methods", arms, arms, **in_url("safe_methods"), wrap=True)
    by_group = rows["task"].nunique() > 1 and right.toggle(
        "Each group on its own", **in_url("safe_groups"), help="A group is a task, or the column group of your prompts"
    )
    criterion = Criterion(by, tolerance / 100, confidence / 100, above, by_group)
    key = (name, len(rows), *rows["key"].iloc[[0, -1]], str(rows["question_aware"].iloc[0]))
    found = _found(rows, criterion, tuple(chosen), key)
    if isinstance(found, str):
        st.warning(plain(found))
        return
    draw(rows, found)


def draw(rows: pd.DataFrame, found: SafeBudgets) -> None:
    """The answer and everything behind it."""
    origin = origin_of(rows)
    certain = found.answers["safe"].notna().any()
    box = st.success if certain else st.warning
    lines = sentences.headline(found)
    if certifiable := sentences.certifiable(found):
        box(plain(lines[0]))
        st.caption(plain(certifiable))
    else:
        box("  \n".join(f"**{plain(line)}**" for line in lines))
    st.caption(plain(sentences.assumptions(found)))
    group = ALL
    if found.criterion.by_group:
        drop_stale_option("safe_group", found.groups)
        group = st.selectbox("Group", found.groups, **in_url("safe_group"))
    table = risk_table(found, group)
    show_view("risk_by_budget", rows, "safe-risk", source=origin, frame=table)
    for line in sentences.method_lines(found):
        st.markdown(f"- {plain(line)}")
    shown = as_percent(table, SHARES).assign(p_value=[float(f"{p:.3g}") for p in table["p_value"]])
    offered_table("Risk of every budget", shown, TABLE, "safe-table", origin)
    with st.expander("How it was tested and counted", **in_url("safe_how")):
        for line in sentences.notes(found):
            st.markdown(f"- {plain(line)}")
    show_changed_prompts(found, origin)
    # How many prompts flip in each direction, and how much methods have in common.
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
    st.download_button(
        "The result as JSON",
        partial(as_json, found, [], ""),
        "safe-budget.json",
        key="safe-json",
        on_click="ignore",
        icon=":material/download:",
        type="tertiary",
    )
    st.caption(f":material/folder_open: {plain(str(origin))}")
