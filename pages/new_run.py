"""Ask for a comparison: prompt, model, methods, budgets. With `?job=` in the address it shows how that one is doing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.private_switch import private_switch
from app.base.segmented import one_of
from app.base.text import plain
from app.evaluation.fit_section import fit_section
from app.figures.export_menu import Offer, titled
from app.navigation.selection import runs_root, session_id
from app.new_run.answer import Question, answer_section, planted
from app.new_run.full_answer import full_answer
from app.new_run.method_section import hyper_parameter_section, method_section, placement_section
from app.new_run.mini_card import mini_card
from app.new_run.plan_panel import show_plan
from app.new_run.prompt_library import save_section
from app.new_run.prompt_preview import cut_as_html, cut_as_passages
from app.new_run.prompt_source import further_down, prompt_section
from app.queue.job_panel import show_job
from app.session.url_numbers import number_of
from kvlab import jobs
from kvlab.catalogue.methods import MethodEntry
from kvlab.catalogue.models import local_models, model_field_help
from kvlab.common.errors import UserError
from kvlab.forms import compare_form, plan_preview, truncation
from kvlab.forms.compare_form import last_form, store_last_form
from kvlab.model_info import names, token_count
from kvlab.model_info.chat_template import ChatFormat, render_prompt
from kvlab.model_info.names import EMBEDDED
from kvlab.requests.facts import find_facts
from kvlab.requests.generation_settings import GenerationSettings, generation_notes
from kvlab.server.offered_models import offered, short_name

LEVELS = {
    "full": "Full: every event, keys and attention rows. All pages work; takes the most memory and disk.",
    "light": "Light: counts and memory per step and layer. No timeline, no similarity maps.",
    "off": "Off: texts and speed only, nothing slows the run down.",
}
NEW_TOKENS = 64
GENERATION_CONFIG = (
    "Whether penalties, suppressed tokens and so on of the checkpoint's own generation settings are applied, "
    "as generate does."
)
NEEDLE_TOKENS = 80  # of a planted sentence and its question


def model_section() -> str:
    """The model's name."""
    st.subheader("Model")
    model = st.text_input(
        "Name",
        "mini",
        key="model",
        bind="query-params",
        help=plain(model_field_help()),
    )
    here = local_models(runs_root())
    if len(here) > 1:
        st.selectbox(
            "On this disk",
            here,
            index=None,
            format_func=short_name,
            key="model_here",
            on_change=take_model,
            placeholder="Take another",
        )
    listed = offered() is not None
    others = "A folder or a hub name such as `Qwen/Qwen3-0.6B` works too."
    st.caption(f"`mini` ships with kvlab. {plain(f'This server has {model_field_help()}.') if listed else others}")
    if model.strip() == EMBEDDED:
        mini_card()
    for note in generation_notes(names.generation_settings(model.strip())):
        st.caption(plain(note))
    return model


def count_section(prompt: str, how: ChatFormat, of: int = 0) -> int:
    """How many tokens the model will be given (0 without a prompt, or where its template refuses it), and says so.

    Of several prompts, `of` so many, it is the longest.
    """
    if not prompt.strip():
        return 0
    try:
        count, exact = token_count.count_tokens(prompt, how)
        templated = exact and render_prompt(prompt, how).templated
    except UserError as error:
        st.error(plain(str(error)))
        return 0
    known = "counted with its tokenizer" if exact else "estimated: its tokenizer is not on this machine"
    known += ", its chat template included" if templated else ""
    room = names.context_length(how.model)
    reads = f" The model was trained on {room:,}, new tokens included." if room else ""
    which = f"The longest of {of} prompts" if of else "The prompt"
    st.markdown(f"{which} has {'' if exact else 'about '}**{count:,} tokens** ({known}).{reads}")
    for note in token_count.notes(prompt, how):
        st.warning(plain(note), icon=":material/info:")
    return count


def take_model() -> None:
    """The model that was picked becomes the one that is named."""
    if picked := st.session_state.get("model_here"):
        st.session_state["model"] = picked
        st.session_state["model_here"] = None


def cut_section(prompt: str, how: ChatFormat, room: int = 0) -> str:
    """The prompt as it will be read: whole where it fits, else cut where the reader says, with the cut shown.

    `room` is how many tokens will come to it.
    """
    new_tokens = room + (number_of(str(further_down("max_new_tokens", NEW_TOKENS))) or NEW_TOKENS)
    over = truncation.excess_tokens(prompt, how, new_tokens) if prompt.strip() else 0
    kept = what_to_keep(over) if over else None
    if kept is None:
        return prompt
    cut = truncation.truncate_prompt(prompt, how, new_tokens, kept)
    reading = f"{len(cut.removed):,} characters will not be read; here is where the text is cut:"
    st.caption(reading)
    offer = Offer("Where the prompt is cut", lambda: cut_as_passages(cut), reading, f"prompt for {how.model}")
    titled(offer, "cut-text")
    with st.container(height=180, border=True):
        st.html(cut_as_html(cut))
    return cut.text


def what_to_keep(over: int) -> truncation.Keep | None:
    """Which part of a text that is `over` tokens too long stays, where it is to be cut."""
    st.warning(f"Prompt and new tokens are {over:,} tokens more than the model reads.", icon=":material/content_cut:")
    keep = one_of("Cut it, and keep", ["nothing cut", *truncation.KEEPS], key="cut")
    return next((part for part in truncation.KEEPS if part == keep), None)


def too_long(prompt: str, how: ChatFormat) -> int:
    """How many tokens a prompt is too long; says of a conversation that its turns are for the reader to shorten."""
    new_tokens = number_of(str(further_down("max_new_tokens", NEW_TOKENS))) or NEW_TOKENS
    over = truncation.excess_tokens(prompt, how, new_tokens)
    if over and how.turns:
        st.warning(f"The conversation and new tokens are {over:,} tokens more than the model reads: shorten a turn.")
    return over


def cut_several(question: Question, how: ChatFormat) -> Question:
    """Each of several prompts cut where it is too long, and where the reader says so; conversations are not cut."""
    over = too_long(question.prompt, how)
    kept = what_to_keep(over) if over and not how.turns else None
    if kept is None:
        return question
    new_tokens = number_of(str(further_down("max_new_tokens", NEW_TOKENS))) or NEW_TOKENS
    cut, lost = truncation.truncate_prompts(question.several, how, new_tokens, kept)
    st.caption(f"{sum(lost.values()):,} characters of {len(lost)} of the prompts will not be read.")
    return replace(question, several=cut)


def cut_question(question: Question, prompt: str) -> Question:
    """The question of the prompt as it is cut; facts are found again, and what was cut away is no fact any more."""
    if prompt == question.prompt:
        return question
    words = [question.prompt[start:stop] for start, stop in question.facts]
    left = [fact for fact in words if fact in prompt]
    if len(left) < len(words):
        st.warning("The cut takes away words that the answer rests on.", icon=":material/content_cut:")
    return replace(question, prompt=prompt, facts=find_facts(prompt, left))


def cut_repeats(question: Question, how: ChatFormat) -> Question:
    """The repeats of the text as it is cut; the needles are planted in what is left of it."""
    text = cut_section(question.text, how, NEEDLE_TOKENS)
    return question if text == question.text else planted(text, question.repeats, question.notes)


def recording_section(default_title: str) -> dict[str, Any]:
    """Record level, length and the settings few people change."""
    st.subheader("Recording")
    level = one_of("Level", list(LEVELS), "full", key="level")
    st.caption(LEVELS[level])
    new_tokens = st.number_input(
        "New tokens", 1, 4096, NEW_TOKENS, key="max_new_tokens", bind="query-params", help="Decoded after the prompt"
    )
    with st.expander("More settings", key="settings", bind="query-params"):
        beginning = default_title or "the beginning of the prompt"
        title = st.text_input("Title", key="title", bind="query-params", placeholder=beginning)
        every = st.number_input(
            "Compress every … steps while decoding", 1, 4096, 1, key="compress_every", bind="query-params"
        )
        chunk = st.number_input(
            "Prefill chunk, tokens (0: the whole prompt at once)", 0, 2**20, 0, key="prefill_chunk", bind="query-params"
        )
        seed = st.number_input("Seed", 0, 2**31 - 1, 0, key="seed", bind="query-params")
        treated = one_of(
            "Generation config", get_args(GenerationSettings), key="generation_config", help=GENERATION_CONFIG
        )
        record = what_to_record() if level == "full" else ""
    return {
        "private": private_switch(),
        "level": level, "max_new_tokens": new_tokens, "title": title or default_title,
        "compress_every": every, "prefill_chunk": chunk or None, "seed": seed, "record": record,
        "generation_config": treated,
    }  # fmt: skip


def what_to_record() -> str:
    """Of which layers, KV heads and steps arrays are written, as `--record` takes it."""
    st.caption("What arrays are recorded of: keys and values, attention rows, the probe. Tables are always whole.")
    layers, heads, every = st.columns(3)
    with layers:
        some = st.text_input(
            "Layers", key="record_layers", bind="query-params", placeholder="all", help="Such as 0-3,8"
        )
    with heads:
        few = st.text_input("KV heads", key="record_heads", bind="query-params", placeholder="all", help="Such as 0,2")
    with every:
        steps = st.number_input("Attention rows every … steps", 1, 4096, 1, key="record_every", bind="query-params")
    return compare_form.record_text(some, few, steps)


def chat_section() -> dict[str, Any]:
    """How the prompt is put to an instruct model."""
    chat = st.selectbox(
        "Chat template",
        list(compare_form.CHATS),
        key="chat",
        bind="query-params",
        format_func=compare_form.CHATS.__getitem__,
    )
    with st.expander("System prompt and thinking", key="chat_more", bind="query-params"):
        system = st.text_area("System prompt", key="system", bind="query-params", help="For models with a template")
        thinking = st.selectbox(
            "Thinking",
            list(compare_form.THINKING),
            key="thinking",
            bind="query-params",
            format_func=compare_form.THINKING.__getitem__,
        )
    return {"chat": chat} if chat == "no" else {"chat": chat, "system": system, "thinking": thinking}


def submit(
    question: Question,
    model: str,
    chosen: list[MethodEntry],
    budgets: str,
    typed: dict[str, dict[str, Any]],
    **options: Any,
) -> None:
    """Queue the comparison and go to its progress, or say in one sentence why not."""
    if question.error:  # said where it was typed
        return
    try:
        choices = compare_form.choices_of_form(chosen, typed, budgets)
        request = compare_form.make_request(model=model, chosen=choices, **question.asked, **options)
        plan_preview.check_fits(request, runs_root())
        job_id = jobs.submit(runs_root(), request, session_id())
        store_last_form(runs_root(), model, options)
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    go("new_run", job=job_id)


def recall() -> None:
    """Fill in model and placement as they were last sent, where neither the address nor the reader says otherwise.

    They then stand in the address, so that it means the same elsewhere.
    """
    for name, value in last_form(runs_root()).items():
        if name not in st.query_params and name not in st.session_state:
            st.session_state[name] = value


def form() -> None:
    """The whole form: the prompt on the left, everything about the runs on the right."""
    st.caption("One prompt, one model, several methods: each runs over the same text, beside the uncompressed cache.")
    recall()
    left, right = st.columns([6, 5], gap="large")
    with left:
        given = prompt_section()
    with right:
        question = answer_section(given)
        prompt = question.prompt
        if (kept := question.as_prompt) is not None:
            save_section(kept)
        model = model_section()
        chat = chat_section()
        how = ChatFormat(model.strip(), **compare_form.request_fields(chat), turns=question.turns)
        prompt_tokens = count_section(prompt, how, len(question.several))
        if prompt_tokens and question.repeats:
            question = cut_repeats(question, how)
        elif prompt_tokens and question.several:
            question = cut_several(question, how)
        elif prompt_tokens and question.turns:
            too_long(prompt, how)
        elif prompt_tokens:
            question = cut_question(question, cut_section(prompt, how))
        try:
            chosen, budgets = method_section(prompt_tokens)
        except UserError as error:
            st.error(plain(str(error)))
            return
        typed = hyper_parameter_section(chosen)
        fit_section(model, chosen)
        options = recording_section(given.title) | placement_section()
        if question.prompt.strip() and not question.error and not question.several:
            full_answer(question, model, options | chat)
        if question.comparisons > 1:
            st.caption(f"For each of the {question.comparisons} prompts, which run one after another:")
        with st.spinner("Planning"):
            plan = plan_preview.plan_of(prompt_tokens, model, chosen, budgets, typed, options, runs_root())
            notes = plan_preview.notes_of(prompt_tokens, chosen, budgets, typed) if prompt_tokens else []
        show_plan(plan, notes)
        start = {"type": "primary", "icon": ":material/play_arrow:", "width": "stretch"}
        if permission.button("Run the comparison", permission.why_not(), **start):
            submit(question, model, chosen, budgets, typed, **options, **chat)


job = st.query_params.get("job")
if job:
    st.title("Comparison")
    show_job(job)
    if st.button("Set up another run", icon=":material/add:"):
        go("new_run")
else:
    st.title("New run")
    form()
