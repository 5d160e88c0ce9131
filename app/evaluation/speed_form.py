"""The form of a benchmark: what to measure, methods, budgets and loads."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.private_switch import private_switch
from app.base.text import plain
from app.new_run.method_section import hyper_parameter_section, method_section
from app.queue.submit import queued
from kvlab.bench.request import BenchJob, parts_of
from kvlab.catalogue.models import what_to_name
from kvlab.common.errors import UserError
from kvlab.common.formatting import format_duration
from kvlab.forms import bench_form
from kvlab.forms.compare_form import PLACEMENTS
from kvlab.forms.eval_form import new_name

FIRST = ["decode", "compress", "memory"]


def speed_form(rows: pd.DataFrame) -> None:
    """The whole form; `rows` are those of earlier benchmarks, for the estimate."""
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Figures")
        modes = st.multiselect(
            "Measure",
            list(bench_form.KINDS),
            FIRST,
            bench_form.KINDS.__getitem__,
            key="modes",
            bind="query-params",
            wrap=True,
        )
        model = st.text_input(
            "Model",
            "mini",
            key="bench_model",
            bind="query-params",
            help=plain(f"{what_to_name()}, or a shape with random weights such as shape:llama3-8b"),
        )
        one, two, three = st.columns(3)
        with one:
            contexts = st.text_input("Tokens in the cache", "1024", key="contexts", bind="query-params")
        with two:
            batches = st.text_input("Batches", "1", key="batches", bind="query-params")
        with three:
            repeats = st.number_input("Repeats, in turns", 1, 100, 5, key="repeats", bind="query-params")
        with st.expander("Device, size and name", key="bench_more", bind="query-params"):
            devices, dtypes = (list(PLACEMENTS[name][1]) for name in ("device", "dtype"))
            device = st.selectbox("Device", devices, key="bench_device", bind="query-params")
            dtype = st.selectbox("Number format", dtypes, key="bench_dtype", bind="query-params")
            scale = st.number_input("Divide a shape's layers and width by", 1, 256, 1, key="scale", bind="query-params")
            steps = st.number_input("Decode steps a repeat", 1, 1000, 8, key="steps", bind="query-params")
            name = st.text_input(
                "Name of the results", key="bench_name", bind="query-params", placeholder="made of date and time"
            )
        private = private_switch("bench_private")
    try:
        with right:
            chosen, budgets = method_section(0, "20%", "Measure")
            typed = hyper_parameter_section(chosen)
        job = bench_form.make_job(
            name=name or new_name(), model=model, modes=modes, chosen=chosen, typed=typed, budgets=budgets,
            contexts=contexts, batches=batches, repeats=int(repeats), device=device, dtype=dtype, scale=int(scale),
            steps=int(steps), private=private,
        )  # fmt: skip
    except UserError as error:
        st.error(plain(str(error)))
        return
    estimate(job, rows)
    start = {"type": "primary", "icon": ":material/play_arrow:", "width": "stretch", "key": "measure"}
    if permission.button("Measure", permission.why_not(), **start):
        submit(job)


def estimate(job: BenchJob, rows: pd.DataFrame) -> None:
    """How many parts, and the time by what was measured of this model before."""
    seconds = bench_form.seconds(job, rows)
    count = len(parts_of(job.requests))
    parts = f"{count} {'part' if count == 1 else 'parts'}, each all methods in turns beside the full cache"
    known = "How long is not known, as nothing of this model was measured here."
    told = (
        known
        if seconds is None
        else f"About {format_duration(max(seconds, 5), rough=True)} by decode steps measured before."
    )
    st.caption(plain(f"{parts}. {told} Nothing else should run on this machine meanwhile."))


def submit(job: BenchJob) -> None:
    """Queue it and go to its progress."""
    job_id = queued(lambda: job)
    if job_id is not None:
        go("speed", job=job_id)
