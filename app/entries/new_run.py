"""New: one question, and the form that answers it: a comparison, an evaluation or a benchmark."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import pandas as pd
import streamlit as st

from app.base.links import go
from app.base.text import plain
from app.base.widgets import button_unless, one_of, private_switch
from app.evaluation.quality_form import SAFE_BUDGET, evaluation_form
from app.evaluation.result_rows import measured_rows
from app.evaluation.speed_results import speed_form
from app.figures.export_menu import Offer, show_title
from app.navigation.selection import runs_root, session_id
from app.new_run.answer import NEW_TOKENS, Question, answer_section, fitted_question
from app.new_run.full_answer import FullAnswer, withdraw
from app.new_run.method_section import fit_section, hyper_parameter_section, method_section, placement_section
from app.new_run.model_section import chat_section, count_section, model_section, propose_model
from app.new_run.prompt_library import save_section
from app.new_run.prompt_source import prompt_section
from app.session.url_state import get_param, in_url, params, set_param
from kvlab import jobs
from kvlab.browser import read_static
from kvlab.common.formatting import format_bytes, model_title
from kvlab.core.errors import UserError
from kvlab.forms import compare_form, plan_preview
from kvlab.forms.plan_preview import run_notes, run_summary
from kvlab.models.info.chat_template import ChatFormat
from kvlab.planning.plan import Plan
from kvlab.report.views import table_of
from kvlab.requests.compare import CompareRequest
from kvlab.requests.generation_settings import GenerationSettings
from kvlab.views.base.words import plural

ON_TOP = "Working memory of the kernels and recordings come on top."


LEVELS = {
    "full": "Full: every event, keys and attention rows. All pages work; needs the most memory and disk.",
    "light": "Light: counts and memory per step and layer. No timeline and no similarity maps.",
    "off": "Off: texts and speed only, with no recording overhead.",
}
GENERATION_CONFIG = (
    "Whether to apply the checkpoint's own generation settings, such as penalties and suppressed tokens, as generate "
    "does."
)


def recording_section(default_title: str, level: str) -> dict[str, Any]:
    """A drawer of rarely used settings."""
    with st.expander("Title, seed and recording", **in_url("settings")):
        title = st.text_input("Title", **in_url("title"), placeholder=default_title or "the beginning of the prompt")
        every = st.number_input("Compress every … steps while decoding", 1, 4096, 1, **in_url("compress_every"))
        chunk = st.number_input(
            "Prefill chunk, tokens (0: the whole prompt at once)", 0, 2**20, 0, **in_url("prefill_chunk")
        )
        seed = st.number_input("Seed", 0, 2**31 - 1, 0, **in_url("seed"))
        generation_config = one_of(
            "Generation config", get_args(GenerationSettings), key="generation_config", help=GENERATION_CONFIG
        )
        record = ""
        if level == "full":
            st.caption(
                "Restrict the recorded arrays: keys and values, attention rows, and the probe. Tables are always "
                "complete."
            )
            layers, heads, rows = st.columns(3)
            chosen_layers = layers.text_input(
                "Layers", **in_url("record_layers"), placeholder="all", help="Such as 0-3,8"
            )
            chosen_heads = heads.text_input(
                "KV heads", **in_url("record_heads"), placeholder="all", help="For example 0,2"
            )
            steps = rows.number_input("Attention rows every … steps", 1, 4096, 1, **in_url("record_every"))
            # In the format of `--record`.
            limits = {
                "layers": chosen_layers.strip(),
                "heads": chosen_heads.strip(),
                "every": str(steps) if steps > 1 else "",
            }
            record = ",".join(f"{name}={value}" for name, value in limits.items() if value)
    return {
        "private": private_switch(),
        "title": title or default_title,
        "compress_every": every,
        "prefill_chunk": chunk or None,
        "seed": seed,
        "record": record,
        "generation_config": generation_config,
    }


def run_bar(
    build: Callable[[], CompareRequest],
    question: Question,
    plan: Plan | None,
    notes: Sequence[str],
    ask: Callable[[], None],
) -> None:
    """Draw the bar. `build` makes the request, and raises UserError where the form cannot be sent.

    `ask` draws the button for the full cache; `notes` are warnings about the methods.
    """
    waiting = 0
    try:
        request = build()
        problem = question.error
        plan_preview.check_fits(request)
        waiting = len(jobs.list_jobs(runs_root(), open_only=True))
    except UserError as error:
        request = None
        problem = str(error)
    with st.bottom, st.container(key="run-bar", horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(key="run-sentence"):
            # What would run, or why nothing can.
            if request is None or problem:
                (st.error if question.prompt.strip() else st.caption)(plain(problem))
            else:
                queue = f", after {plural(waiting, 'job')} in the queue" if waiting else ""
                st.markdown(f"**{plain(run_summary(request, plan) + queue)}**")
                for note in notes:
                    st.caption(f":material/warning: {plain(note)}")
        if plan is not None:
            with st.popover("Plan", icon=":material/memory:", type="tertiary"):
                # The verdict, and a table of parts.
                st.caption(plain(plan.verdict))
                table = pd.DataFrame(
                    {"part": part.name, "bytes": format_bytes(part.bytes), "what it is": part.why}
                    for part in plan.parts
                )
                model = model_title(plan.model.name)
                subject = f"{model} · prompt of {plan.tokens:,} tokens · planned for {plan.machine.name}"
                words = f"{plan.verdict} {ON_TOP}"
                show_title(Offer("Memory of the comparison", lambda: table_of(table), words, subject), "plan-table")
                st.dataframe(table, hide_index=True, alt="One row per part and its size")
                st.caption(ON_TOP)
        ask()
        start: dict[str, Any] = {"type": "primary", "icon": ":material/play_arrow:", "key": "run"}
        if button_unless("Run", plain(problem), **start) and request is not None:
            # Queue the comparison and show its progress.
            try:
                withdraw()
                job_id = jobs.submit(runs_root(), request, session_id())
                compare_form.store_last_form(
                    runs_root(),
                    request.model,
                    {name: getattr(request, name) or "none" for name in compare_form.PLACEMENTS},
                )
                jobs.ensure_worker(runs_root())
            except UserError as error:
                st.error(plain(str(error)))
                return
            go("compare", job=job_id)


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
    last = compare_form.last_form(runs_root())
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
        new_tokens = st.number_input(
            "New tokens", 1, 4096, NEW_TOKENS, **in_url("max_new_tokens"), help="Decoded after the prompt", width=140
        )
        level = one_of("Record", list(LEVELS), "full", key="level", help="  \n".join(LEVELS.values()), width="content")
        options: dict[str, Any] = {"max_new_tokens": new_tokens, "level": level}
    with drawers:
        typed = hyper_parameter_section(chosen)
        fit_section(model, chosen)
        options |= recording_section(choice.title, level) | placement_section()
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


def new_run_page() -> None:
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
