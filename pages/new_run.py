"""New: one question, and the form that answers it: a comparison, an evaluation or a benchmark."""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.base.widgets import one_of
from app.evaluation.fit_section import fit_section
from app.evaluation.quality_form import SAFE_BUDGET, evaluation_form
from app.evaluation.result_rows import measured_rows
from app.evaluation.speed_results import speed_form
from app.navigation.proposed_model import propose_model
from app.navigation.selection import runs_root
from app.new_run.answer import FullAnswer, answer_section
from app.new_run.long_prompt import fitted_question
from app.new_run.method_section import hyper_parameter_section, method_section, placement_section
from app.new_run.model_section import chat_section, count_section, model_section
from app.new_run.prompt_library import save_section
from app.new_run.prompt_source import prompt_section
from app.new_run.run_bar import length_and_level, recording_section, run_bar
from app.session.url_state import get_param, params, set_param
from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.forms import compare_form, plan_preview
from kvlab.forms.compare_form import last_form
from kvlab.forms.plan_preview import run_notes
from kvlab.models.info.chat_template import ChatFormat

QUESTIONS = {
    "One prompt": "What each method answers to it, at how many bytes.",
    "Many prompts": "Scores with intervals, of compressed caches and the full cache on the same prompts.",
    "A guarantee": "How small the cache may be so that your prompts keep their answers.",
    "Timing": "Speed and memory of a decode step, beside the best full cache.",
}


def form() -> None:
    """The form: the prompt on the left, everything about the runs on the right, the buttons in a bar below."""
    st.html(f"<style>{read_static('new-run.css')}</style>")
    # The model in view and the placement of the last run go into the URL, unless it or the user set them.
    last = last_form(runs_root())
    propose_model("model", last.pop("model", ""))
    for name, value in last.items():
        if name not in params() and name not in st.session_state:
            st.session_state[name] = value
    with st.container(key="new-run"):
        left, right = st.columns([6, 5], gap="large")
    with left:
        choice = prompt_section()
    with right:
        model = model_section()
        methods = st.container()
        row = st.container(horizontal=True, vertical_alignment="bottom")
        drawers = st.container(gap="small")
    with drawers:
        chat = chat_section(model)
    with left:
        question = answer_section(choice)
        answered = st.container()
        how = ChatFormat(model.strip(), **compare_form.request_fields(chat), turns=question.turns)
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key="prompt-count"):
            tokens = count_section(question.prompt, how, len(question.several))
            if (prompt_to_save := question.as_prompt) is not None:
                save_section(prompt_to_save)
        if tokens:
            question = fitted_question(question, how)
    try:
        with methods:
            chosen, budgets = method_section(tokens, row=row)
    except UserError as error:
        st.error(plain(str(error)))
        return
    with row:
        options = length_and_level()
    with drawers:
        typed = hyper_parameter_section(chosen)
        fit_section(model, chosen)
        options |= recording_section(choice.title, options["level"]) | placement_section()
    with st.spinner("Planning"):
        plan = plan_preview.plan_of(tokens, model, chosen, budgets, typed, options)
        chunk = options["prefill_chunk"]
        notes = run_notes(tokens, model, chosen, budgets, typed, chunk) if tokens else []
    build = partial(compare_form.build, question.request_fields, model, chosen, typed, budgets, options | chat)
    full = FullAnswer(question, model, options | chat)
    with answered:
        full.show()
    run_bar(build, question, plan, notes, full.button)


def forget_amounts() -> None:
    """Each question has its own usual budgets and number of prompts."""
    for name in ("budgets", "samples"):
        st.session_state.pop(name, None)
        set_param(name, None)


if get_param("job"):  # links of before: the form followed its job itself
    go("compare", **params())
st.title("New")
question = one_of("What do you want to know?", list(QUESTIONS), key="ask", on_change=forget_amounts)
st.caption(plain(QUESTIONS[question]))
if question == "One prompt":
    form()
elif question == "Many prompts":
    evaluation_form(measured_rows("evaluations"))
elif question == "A guarantee":
    evaluation_form(measured_rows("evaluations"), SAFE_BUDGET)
else:
    speed_form()
