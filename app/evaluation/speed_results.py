"""The form and the results of a benchmark: rates, prefill and memory, with bounds."""

import streamlit as st

from app.base.text import plain
from app.base.widgets import private_switch
from app.evaluation.result_rows import measured_rows
from app.figures.figure import show_view
from app.new_run.method_section import hyper_parameter_section, method_section
from app.new_run.model_section import propose_model
from app.queue.job_panel import queue_and_open
from app.session.url_state import drop_stale_option, in_url
from kvlab.bench.request import parts_of
from kvlab.core.errors import UserError
from kvlab.forms import eval_form
from kvlab.forms.compare_form import PLACEMENTS
from kvlab.planning.choices import model_field_help
from kvlab.results import speed_tables

FIRST = ["decode", "prefill", "memory"]


def speed_form() -> None:
    """The form of a new benchmark."""
    left, right = st.columns(2, gap="large")
    with left:
        st.header("Figures")
        modes = st.multiselect(
            "Measure", list(eval_form.KINDS), FIRST, eval_form.KINDS.__getitem__, **in_url("modes"), wrap=True
        )
        propose_model("model")
        model = st.text_input(
            "Model",
            "mini",
            **in_url("model"),
            help=plain(f"{model_field_help()}, or a shape with random weights such as shape:llama3-8b"),
        )
        one, two, three = st.columns(3)
        contexts = one.text_input("Tokens in the cache", "1024", **in_url("contexts"))
        batches = two.text_input("Batches", "1", **in_url("batches"))
        repeats = three.number_input("Repeats, alternating", 1, 100, 5, **in_url("repeats"))
        with st.expander("Device, size and name", **in_url("bench_more")):
            devices, dtypes = (list(PLACEMENTS[name][1]) for name in ("device", "dtype"))
            device = st.selectbox("Device", devices, **in_url("bench_device"))
            dtype = st.selectbox("Number format", dtypes, **in_url("bench_dtype"))
            scale = st.number_input("Divide a shape's layers and width by", 1, 256, 1, **in_url("scale"))
            steps = st.number_input("Decode steps per repeat", 1, 1000, 8, **in_url("steps"))
            name = st.text_input("Name of the results", **in_url("bench_name"), placeholder="date and time")
        private = private_switch("bench_private")
    try:
        with right:
            st.header("Methods")
            chosen, budgets = method_section(0, "20%", "Measure")
            typed = hyper_parameter_section(chosen)
        job = eval_form.make_bench_job(
            name=name,
            model=model,
            modes=modes,
            chosen=chosen,
            typed=typed,
            budgets=budgets,
            contexts=contexts,
            batches=batches,
            repeats=int(repeats),
            device=device,
            dtype=dtype,
            scale=int(scale),
            steps=int(steps),
            private=private,
        )
    except UserError as error:
        st.error(plain(str(error)))
        return
    count = len(parts_of(job.requests))
    parts = f"{count} {'part' if count == 1 else 'parts'}, each with all methods alternating with the full cache"
    st.caption(plain(f"{parts}. Nothing else should run on this machine during the benchmark."))
    if st.button("Measure", type="primary", icon=":material/play_arrow:", width="stretch", key="measure"):
        queue_and_open("speed", lambda: job)


def results(name: str | None = None) -> None:
    """The pickers and all figures of one file; `name` is the file of a job."""
    rows = measured_rows("benchmarks")
    names = rows.sort_values("timestamp")["name"].drop_duplicates().tolist()[::-1] if len(rows) else []
    if name is not None and name not in names:
        st.info("No results yet: the model is being loaded, or the first part is not finished.")
        return
    if not names:
        st.info("There are no benchmarks here yet: start one on the page **New**, or with `kvlab bench`.")
        return
    if name is not None:
        st.session_state["file"] = name
    drop_stale_option("file", names)
    left, right = st.columns(2)
    file = left.selectbox("Benchmark", names, **in_url("file"))
    rows = rows[rows["name"] == file]
    load_of = {
        speed_tables.place(speed_tables.rows_of_load(rows, load), load): load for load in speed_tables.loads(rows)
    }
    if not load_of:
        st.info("This file has no measurements of a cache.")
        return
    drop_stale_option("load", list(load_of))
    place = right.selectbox("Measured on", list(load_of), **in_url("load"))
    here = speed_tables.rows_of_load(rows, load_of[place])
    origin = speed_tables.origin(here)
    copied = speed_tables.bandwidth(rows)
    if copied is not None:
        st.caption(
            plain(f"This device copies {copied:.1f} GB/s; bounds are the bytes to be moved divided by that rate.")
        )
    for name, measure in speed_tables.MEASURES.items():
        if here.loc[here["figure"] == measure.figure, "median"].notna().any():
            show_view("speed", here, f"speed-{name}", source=origin, measure=name)
        at_lengths = rows[(rows["model"] == load_of[place][0]) & (rows["batch"] == load_of[place][1])]
        measured = at_lengths[(at_lengths["figure"] == measure.figure) & at_lengths["median"].notna()]
        if measured["context"].nunique() > 1:
            show_view("speed_by_length", at_lengths, f"speed-by-length-{name}", source=origin, measure=name)
    st.caption(f":material/folder_open: {plain(str(origin))}")
