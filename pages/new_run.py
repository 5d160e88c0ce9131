"""New run: the form of a comparison. With `?job=` in the URL it shows the progress of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pandas as pd
import streamlit as st

from app.base import permission
from app.base.links import go
from app.base.text import plain
from app.base.widgets import one_of, private_switch
from app.evaluation.fit_section import fit_section
from app.figures.export_menu import Offer, titled
from app.navigation.selection import runs_root, session_id
from app.new_run.answer import Question, answer_section, planted
from app.new_run.full_answer import full_answer
from app.new_run.method_section import hyper_parameter_section, method_section, placement_section
from app.new_run.packaged_models import download_buttons
from app.new_run.plan_panel import show_plan
from app.new_run.prompt_library import save_section
from app.new_run.prompt_preview import cut_as_html, cut_as_passages
from app.new_run.prompt_source import further_down, prompt_section
from app.queue.job_panel import show_job
from app.session.url_state import get_param, in_url, params, parse_number
from kvlab import jobs
from kvlab.catalogue.methods import MethodEntry
from kvlab.catalogue.models import local_models, model_field_help
from kvlab.common.errors import UserError
from kvlab.common.model_title import model_title
from kvlab.forms import compare_form, plan_preview, truncation
from kvlab.forms.compare_form import last_form, store_last_form
from kvlab.model_info import names, token_count
from kvlab.model_info.chat_template import ChatFormat, render_prompt
from kvlab.model_info.names import EMBEDDED
from kvlab.models.mini.card import cannot_do, taught
from kvlab.report.views import table_of
from kvlab.requests.facts import find_facts
from kvlab.requests.generation_settings import GenerationSettings, generation_notes
from kvlab.server.offered_models import offered, short_name

LEVELS = {
    "full": "Full: every event, keys and attention rows. All pages work; needs the most memory and disk.",
    "light": "Light: counts and memory per step and layer. No timeline and no similarity maps.",
    "off": "Off: texts and speed only, with no recording overhead.",
}
NEW_TOKENS = 64
GENERATION_CONFIG = (
    "Whether to apply the checkpoint's own generation settings, such as penalties and suppressed tokens, as generate "
    "does."
)
NEEDLE_TOKENS = 80  # of a planted needle and its question


def model_section() -> str:
    """The name of the model."""
    st.subheader("Model")
    model = st.text_input("Name", "mini", **in_url("model"), help=plain(model_field_help()))
    local = local_models(runs_root())
    if len(local) > 1:
        st.selectbox(
            "On this disk",
            local,
            index=None,
            format_func=model_name,
            key="model_here",
            on_change=take_model,
            placeholder="Choose another",
        )
    download_buttons()
    others = "A folder, a GGUF file or a hub name such as `Qwen/Qwen3-0.6B` works too."
    others = plain(f"This server has {model_field_help()}.") if offered() is not None else others
    st.caption(f"`mini` is shipped with kvlab. {others}")
    if model.strip() == EMBEDDED:
        mini_card()
    for note in generation_notes(names.generation_settings(model.strip())):
        st.caption(plain(note))
    return model


def mini_card() -> None:
    """One sentence, and an expander with the wordings and the limits from the model card."""
    st.caption(
        "mini answers questions in the wordings it was trained on; in others it often fails, even with the full cache."
    )
    with st.expander("Wordings that mini was trained on, and its limits", key="mini_card"):
        table = pd.DataFrame(
            {"kind": item.kind, "statement": one_line(item.statement), "question": one_line(item.question)}
            for item in taught()
        )
        offer = Offer("Wordings that mini was trained on", lambda: table_of(table), cannot_do(), "mini's model card")
        titled(offer, "mini-taught")
        st.dataframe(table, hide_index=True, alt="One row per wording")
        st.caption(plain(cannot_do()))


def one_line(text: str) -> str:
    return " ⏎ ".join(line.strip() for line in text.strip().splitlines())


def count_section(prompt: str, how: ChatFormat, of: int = 0) -> int:
    """Show and return the number of tokens; 0 without a prompt, or if the chat template rejects it.

    `of` is the number of prompts, of which `prompt` is the longest.
    """
    if not prompt.strip():
        return 0
    try:
        count, exact = token_count.count_tokens(prompt, how)
        templated = exact and render_prompt(prompt, how).templated
    except UserError as error:
        st.error(plain(str(error)))
        return 0
    basis = "counted with its tokenizer" if exact else "estimated, as its tokenizer is not on this machine"
    basis += ", including its chat template" if templated else ""
    window = names.context_length(how.model)
    limit = f" The model's context window is {window:,} tokens, including new tokens." if window else ""
    which = f"The longest of {of} prompts" if of else "The prompt"
    st.markdown(f"{which} has {'' if exact else 'about '}**{count:,} tokens** ({basis}).{limit}")
    for note in token_count.notes(prompt, how):
        st.warning(plain(note), icon=":material/info:")
    return count


def model_name(model: str) -> str:
    """A model in the list of those on this disk: within its folder, or by its title."""
    short = short_name(model)
    return short if short != model else model_title(model)


def take_model() -> None:
    """Callback: take over the picked model."""
    if picked := st.session_state.get("model_here"):
        st.session_state["model"] = picked
        st.session_state["model_here"] = None


def new_tokens() -> int:
    """The number of new tokens, from the field that is drawn later."""
    return parse_number(str(further_down("max_new_tokens", NEW_TOKENS))) or NEW_TOKENS


def cut_section(prompt: str, how: ChatFormat, extra: int = 0) -> str:
    """The prompt, cut as the user chooses if it does not fit, with a preview of the cut.

    `extra` tokens will be added to it.
    """
    over = truncation.excess_tokens(prompt, how, extra + new_tokens()) if prompt.strip() else 0
    keep = part_to_keep(over) if over else None
    if keep is None:
        return prompt
    cut = truncation.truncate_prompt(prompt, how, extra + new_tokens(), keep)
    reading = f"{len(cut.removed):,} characters are left out. The text is cut here:"
    st.caption(reading)
    offer = Offer(
        "Where the prompt is cut", lambda: cut_as_passages(cut), reading, f"prompt for {model_title(how.model)}"
    )
    titled(offer, "cut-text")
    with st.container(height=180, border=True):
        st.html(cut_as_html(cut))
    return cut.text


def part_to_keep(over: int) -> truncation.Keep | None:
    """The part to keep of a prompt that is `over` tokens too long; None to leave it uncut."""
    st.warning(
        f"Prompt and new tokens exceed the model's context window by {over:,} tokens.", icon=":material/content_cut:"
    )
    keep = one_of("Cut the prompt, and keep", ["nothing cut", *truncation.KEEPS], key="cut")
    return next((part for part in truncation.KEEPS if part == keep), None)


def too_long(prompt: str, how: ChatFormat) -> int:
    """By how many tokens a prompt is too long, with a warning for a conversation, which is not cut."""
    over = truncation.excess_tokens(prompt, how, new_tokens())
    if over and how.turns:
        st.warning(f"Conversation and new tokens exceed the model's context window by {over:,} tokens: shorten a turn.")
    return over


def cut_several(question: Question, how: ChatFormat) -> Question:
    """Several prompts, those that are too long cut as the user chooses; conversations are not cut."""
    over = too_long(question.prompt, how)
    keep = part_to_keep(over) if over and not how.turns else None
    if keep is None:
        return question
    cut, lost = truncation.truncate_prompts(question.several, how, new_tokens(), keep)
    st.caption(f"{sum(lost.values()):,} characters in {len(lost)} prompts are left out.")
    return replace(question, several=cut)


def cut_question(question: Question, prompt: str) -> Question:
    """The question for the cut prompt, with the facts that are left in it."""
    if prompt == question.prompt:
        return question
    words = [question.prompt[start:stop] for start, stop in question.facts]
    left = [fact for fact in words if fact in prompt]
    if len(left) < len(words):
        st.warning("The cut removes words that the answer depends on.", icon=":material/content_cut:")
    return replace(question, prompt=prompt, facts=find_facts(prompt, left))


def cut_repeats(question: Question, how: ChatFormat) -> Question:
    """The repeats in the cut text, with their needles planted in it."""
    text = cut_section(question.text, how, NEEDLE_TOKENS)
    return question if text == question.text else planted(text, question.repeats, question.notes)


def recording_section(default_title: str) -> dict[str, Any]:
    """Record level, number of new tokens, and rarely used settings."""
    st.subheader("Recording")
    level = one_of("Level", list(LEVELS), "full", key="level")
    st.caption(LEVELS[level])
    new_tokens = st.number_input(
        "New tokens", 1, 4096, NEW_TOKENS, **in_url("max_new_tokens"), help="Decoded after the prompt"
    )
    with st.expander("More settings", **in_url("settings")):
        title = st.text_input("Title", **in_url("title"), placeholder=default_title or "the beginning of the prompt")
        every = st.number_input("Compress every … steps while decoding", 1, 4096, 1, **in_url("compress_every"))
        chunk = st.number_input(
            "Prefill chunk, tokens (0: the whole prompt at once)", 0, 2**20, 0, **in_url("prefill_chunk")
        )
        seed = st.number_input("Seed", 0, 2**31 - 1, 0, **in_url("seed"))
        generation_config = one_of(
            "Generation config", get_args(GenerationSettings), key="generation_config", help=GENERATION_CONFIG
        )
        record = arrays_section() if level == "full" else ""
    return {
        "private": private_switch(),
        "level": level, "max_new_tokens": new_tokens, "title": title or default_title,
        "compress_every": every, "prefill_chunk": chunk or None, "seed": seed, "record": record,
        "generation_config": generation_config,
    }  # fmt: skip


def arrays_section() -> str:
    """The layers, KV heads and steps whose arrays are recorded, in the format of `--record`."""
    st.caption(
        "Restrict the recorded arrays: keys and values, attention rows, and the probe. Tables are always complete."
    )
    layers, heads, every = st.columns(3)
    chosen_layers = layers.text_input("Layers", **in_url("record_layers"), placeholder="all", help="Such as 0-3,8")
    chosen_heads = heads.text_input("KV heads", **in_url("record_heads"), placeholder="all", help="For example 0,2")
    steps = every.number_input("Attention rows every … steps", 1, 4096, 1, **in_url("record_every"))
    return compare_form.record_text(chosen_layers, chosen_heads, steps)


def chat_section() -> dict[str, Any]:
    """How the prompt is given to an instruct model."""
    chat = st.selectbox(
        "Chat template", list(compare_form.CHATS), **in_url("chat"), format_func=compare_form.CHATS.__getitem__
    )
    with st.expander("System prompt and thinking", **in_url("chat_more")):
        system = st.text_area("System prompt", **in_url("system"), help="For models with a chat template")
        thinking = st.selectbox(
            "Thinking", list(compare_form.THINKING), **in_url("thinking"), format_func=compare_form.THINKING.__getitem__
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
    """Queue the comparison and show its progress, or an error."""
    if question.error:  # shown where it was typed
        return
    try:
        choices = compare_form.choices_of_form(chosen, typed, budgets)
        request = compare_form.make_request(model=model, chosen=choices, **question.request_fields, **options)
        plan_preview.check_fits(request, runs_root())
        job_id = jobs.submit(runs_root(), request, session_id())
        store_last_form(runs_root(), model, options)
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    go("new_run", job=job_id)


def recall() -> None:
    """Fill in model and placement of the last run, unless the URL or the user set them.

    They then appear in the URL, so that it means the same elsewhere.
    """
    for name, value in last_form(runs_root()).items():
        if name not in params() and name not in st.session_state:
            st.session_state[name] = value


def form() -> None:
    """The form: the prompt on the left, everything about the runs on the right."""
    st.caption("One prompt, one model, several methods: each runs over the same text, as does the uncompressed cache.")
    recall()
    left, right = st.columns([6, 5], gap="large")
    with left:
        choice = prompt_section()
    with right:
        question = answer_section(choice)
        prompt = question.prompt
        if (prompt_to_save := question.as_prompt) is not None:
            save_section(prompt_to_save)
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
        options = recording_section(choice.title) | placement_section()
        if question.prompt.strip() and not question.error and not question.several:
            full_answer(question, model, options | chat)
        if question.comparisons > 1:
            st.caption(f"For each of the {question.comparisons} prompts, which are run one after another:")
        with st.spinner("Planning"):
            plan = plan_preview.plan_of(prompt_tokens, model, chosen, budgets, typed, options, runs_root())
            notes = plan_preview.notes_of(prompt_tokens, chosen, budgets, typed) if prompt_tokens else []
        show_plan(plan, notes)
        start = {"type": "primary", "icon": ":material/play_arrow:", "width": "stretch"}
        if permission.button("Run the comparison", permission.why_not(), **start):
            submit(question, model, chosen, budgets, typed, **options, **chat)


job = get_param("job")
if job:
    st.title("Comparison")
    show_job(job)
    if st.button("Set up another run", icon=":material/add:"):
        go("new_run")
else:
    st.title("New run")
    form()
