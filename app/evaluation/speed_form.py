"""The form of a benchmark: measurements, methods, budgets and loads."""

from __future__ import annotations

import streamlit as st

from app.base.text import plain
from app.base.widgets import private_switch
from app.navigation.proposed_model import propose_model
from app.new_run.method_section import hyper_parameter_section, method_section
from app.queue.submit import queue_and_open
from app.session.url_state import in_url
from kvlab.bench.request import BenchJob, parts_of
from kvlab.core.errors import UserError
from kvlab.forms import bench_form
from kvlab.forms.compare_form import PLACEMENTS
from kvlab.forms.eval_form import new_name
from kvlab.planning.models import model_field_help

FIRST = ["decode", "prefill", "memory"]


def speed_form() -> None:
    """The form of a new benchmark."""
    left, right = st.columns(2, gap="large")
    with left:
        st.header("Figures")
        modes = st.multiselect(
            "Measure", list(bench_form.KINDS), FIRST, bench_form.KINDS.__getitem__, **in_url("modes"), wrap=True
        )
        propose_model("bench_model")
        model = st.text_input(
            "Model",
            "mini",
            **in_url("bench_model"),
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
        job = bench_form.make_job(
            name=name or new_name(),
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
    count_parts(job)
    if st.button("Measure", type="primary", icon=":material/play_arrow:", width="stretch", key="measure"):
        queue_and_open("speed", lambda: job)


def count_parts(job: BenchJob) -> None:
    """The number of parts."""
    count = len(parts_of(job.requests))
    parts = f"{count} {'part' if count == 1 else 'parts'}, each with all methods alternating with the full cache"
    st.caption(plain(f"{parts}. Nothing else should run on this machine during the benchmark."))
