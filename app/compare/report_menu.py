"""The menu that exports a report of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.figures.export_menu import explain_formats, file_button
from app.figures.image_writer import image_writer
from app.session.open_runs import runs_root
from kvlab.report.contents import report
from kvlab.report.export import FORMATS, render_report
from kvlab.trace.reader import Run
from kvlab.trace.user_labels import load_labels

LABELS = {"html": "HTML, one file", "pptx": "Slides (PPTX)", "pdf": "PDF"}


def report_menu(runs: Sequence[Run]) -> None:
    """Buttons for the formats; a file is created on download."""
    if not any(run.record.method != "full" for run in runs):
        return
    with st.popover("Report of this comparison", icon=":material/summarize:", key="report"):
        st.caption("Question, answers, table, key figures, texts, and caveats.")
        for kind, media in FORMATS.items():
            name = f"{runs[0].record.comparison_id}.{kind}"
            file_button(LABELS[kind], kind, partial(_report, runs, kind), name, media, "report", width="stretch")
        explain_formats()


def _report(runs: Sequence[Run], kind: str) -> bytes:
    labels = load_labels(runs_root(), runs[0].record.comparison_id)
    return render_report(report(runs, labels), kind, image_writer())
