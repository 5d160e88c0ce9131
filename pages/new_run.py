"""Ask for a comparison: prompt, model, methods, budgets. With `?job=` in the address it shows how that one is doing."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.parts.job_panel import show_job
from app.parts.links import go
from app.parts.method_form import method_form
from app.parts.prompt_preview import cut_as_html, tokens_as_html
from app.parts.text import plain
from app.state import runs_root, session_id
from kvlab import jobs
from kvlab.errors import UserError
from kvlab.jobs import cutting, intake, models, parameters, prompts, uploads
from kvlab.jobs.registry import MethodEntry, methods
from kvlab.tasks.shipped_samples import shipped_samples

SOURCES = ("Sample", "Paste", "Upload")
LEVELS = {
    "full": "Full: every event, keys and attention rows. All pages work; takes the most memory and disk.",
    "light": "Light: counts and memory per step and layer. No timeline, no similarity maps.",
    "off": "Off: texts and speed only, nothing slows the run down.",
}
PREVIEW_CHARACTERS = 20_000


def prompt_section() -> tuple[str, str]:
    """The prompt from the chosen source, shown as it is, and a title for it; empty when it cannot be used."""
    st.subheader("Prompt")
    source = st.segmented_control(
        "Where from", SOURCES, default="Sample", key="source", required=True, label_visibility="collapsed"
    )
    read = {"Sample": sample_prompt, "Paste": pasted_prompt, "Upload": uploaded_prompt}[source]
    try:
        return read()
    except UserError as error:
        st.error(plain(str(error)))
        return "", ""


def sample_prompt() -> tuple[str, str]:
    """The text and title of a prompt that ships with kvlab."""
    by_title = {sample.title: sample for sample in shipped_samples()}
    chosen = by_title[st.selectbox("Sample", list(by_title), key="sample")]
    st.markdown(plain(chosen.description))
    st.caption(f"Look for: {plain(chosen.look_for)}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        budget = f"{100 * chosen.suggested_budget:g}%"
        st.caption(f"Suggested: a budget of {budget} and {chosen.max_new_tokens} new tokens.", width="content")
        st.button("Use these", on_click=suggest, args=(budget, chosen.max_new_tokens), type="tertiary", key="suggest")
    preview(chosen.text)
    return chosen.text, chosen.title


def suggest(budget: str, new_tokens: int) -> None:
    """Called before the script runs again: fills in what the sample suggests."""
    st.session_state["budgets"], st.session_state["max_new_tokens"] = budget, new_tokens


def pasted_prompt() -> tuple[str, str]:
    """What is typed or pasted; checked when the run is asked for."""
    text = st.text_area("Text", key="pasted", height=640, placeholder="Paste a prompt", persist_state="page")
    return text, ""


def uploaded_prompt() -> tuple[str, str]:
    """The text and name of an uploaded file; of a table, the text of one row."""
    label = "Text or Markdown, or a table of prompts as JSON lines or CSV; UTF-8, up to 2 MB"
    file = st.file_uploader(label, type=list(uploads.TYPES), key="upload")
    if file is None:
        return "", ""
    upload = uploads.read_upload(file.name, file.getvalue())
    if not upload.rows:
        preview(upload.text)
        return upload.text, file.name
    left, right = st.columns([2, 1])
    with left:
        column = st.selectbox("Column" if file.name.endswith(".csv") else "Field", upload.fields, key="upload_field")
    with right:
        row = int(st.number_input(f"Row of {len(upload.rows):,}", 1, len(upload.rows), 1, key="upload_row"))
    text = upload.pick(row - 1, column)
    preview(text)
    return text, f"{file.name}, row {row}"


def preview(text: str) -> None:
    """The beginning of the prompt, letter by letter: nothing in it is read as Markdown or HTML."""
    model = str(st.session_state.get("model", "mini")).strip()
    tokens = st.toggle("Show tokens", key="show_tokens", help="Every other token shaded, by the model's tokenizer.")
    with st.container(height=560, border=True):
        spans = cutting.token_spans(text[:PREVIEW_CHARACTERS], model) if tokens else None
        if spans is None:
            st.text(text[:PREVIEW_CHARACTERS])
        else:
            st.html(tokens_as_html(text[:PREVIEW_CHARACTERS], spans))
    if tokens and spans is None:
        st.caption("The model's tokenizer is not on this machine, so its tokens are not known.")
    if len(text) > PREVIEW_CHARACTERS:
        st.caption(f"The first {PREVIEW_CHARACTERS:,} of {len(text):,} characters.")


def model_section(prompt: str) -> tuple[str, int]:
    """The model's name, and how many tokens the prompt has for it (0 without a prompt)."""
    st.subheader("Model")
    model = st.text_input(
        "Name", "mini", key="model", help="mini ships with kvlab; or a folder saved by transformers; or a hub name"
    )
    st.caption("`mini` ships with kvlab. A folder or a hub name such as `Qwen/Qwen3-0.6B` works too.")
    if not prompt.strip():
        return model, 0
    count, exact = prompts.count_tokens(prompt, model.strip())
    known = "counted with its tokenizer" if exact else "estimated: its tokenizer is not on this machine"
    room = models.context_length(model.strip())
    reads = f" The model was trained on {room:,}, new tokens included." if room else ""
    st.markdown(f"The prompt has {'' if exact else 'about '}**{count:,} tokens** ({known}).{reads}")
    return model, count


def cut_section(prompt: str, model: str) -> str:
    """The prompt as it will be read: whole where it fits, else cut where the reader says, with the cut shown."""
    new_tokens = int(st.session_state.get("max_new_tokens", 64))
    over = cutting.tokens_over(prompt, model.strip(), new_tokens) if prompt.strip() else 0
    if not over:
        return prompt
    st.warning(f"Prompt and new tokens are {over:,} tokens more than the model reads.", icon=":material/content_cut:")
    keep = st.segmented_control(
        "Cut it, and keep", ["nothing cut", *cutting.KEEPS], default="nothing cut", key="cut", required=True
    )
    kept = next((part for part in cutting.KEEPS if part == keep), None)
    if kept is None:
        return prompt
    cut = cutting.cut_to_fit(prompt, model.strip(), new_tokens, kept)
    st.caption(f"{len(cut.removed):,} characters will not be read; here is where the text is cut:")
    with st.container(height=180, border=True):
        st.html(cut_as_html(cut))
    return cut.text


def method_section(prompt_tokens: int) -> tuple[list[MethodEntry], str]:
    """The chosen methods and the budgets as typed, with what may surprise about them."""
    st.subheader("Methods")
    with st.spinner("Reading the list of methods"):
        registered = {entry.name: entry for entry in methods()}
    default = [name for name in intake.SAMPLE_METHODS if name in registered]
    names = st.multiselect(
        "Compare", list(registered), default, lambda name: registered[name].title, key="methods", wrap=True
    )
    st.session_state.setdefault("budgets", "20%")
    typed = st.text_input(
        "Budgets",
        key="budgets",
        help="Fractions of the prompt (0.2 or 20%) or slots per KV head (128), several with commas between them",
    )
    try:
        for note in intake.budget_notes(intake.parse_budgets(typed), prompt_tokens) if prompt_tokens else []:
            st.info(plain(note))
    except UserError as error:
        st.error(plain(str(error)))
    return [registered[name] for name in names], typed


def hyper_parameter_section(chosen: list[MethodEntry]) -> dict[str, dict[str, Any]]:
    """The values typed for each chosen method."""
    with_parameters = [entry for entry in chosen if entry.hyper_parameters]
    if not with_parameters:
        return {}
    st.caption("Hyper-parameters; what you leave alone has the method's default.")
    return {entry.name: method_form(entry) for entry in with_parameters}


def recording_section(default_title: str) -> dict[str, Any]:
    """Record level, length and the settings few people change."""
    st.subheader("Recording")
    level = st.segmented_control("Level", list(LEVELS), default="full", key="level", required=True)
    st.caption(LEVELS[level])
    st.session_state.setdefault("max_new_tokens", 64)
    new_tokens = st.number_input("New tokens", 1, 4096, key="max_new_tokens", help="Decoded after the prompt")
    with st.expander("More settings"):
        title = st.text_input("Title", key="title", placeholder=default_title or "the beginning of the prompt")
        every = st.number_input("Compress every … steps while decoding", 1, 4096, 1, key="compress_every")
        seed = st.number_input("Seed", 0, 2**31 - 1, 0, key="seed")
        device = st.selectbox("Device", ["auto", "cpu", "cuda", "mps"], key="device")
        dtype = st.selectbox("Number format", ["auto", "float32", "bfloat16", "float16"], key="dtype")
    return {
        "level": level, "max_new_tokens": new_tokens, "title": title or default_title,
        "compress_every": every, "seed": seed, "device": device, "dtype": dtype,
    }  # fmt: skip


def submit(
    prompt: str, model: str, chosen: list[MethodEntry], budgets: str, typed: dict[str, dict[str, Any]], **options: Any
) -> None:
    """Queue the comparison and go to its progress, or say in one sentence why not."""
    try:
        changed = {entry.name: parameters.changed(entry, typed.get(entry.name, {})) for entry in chosen}
        choices = intake.choices(chosen, intake.parse_budgets(budgets), changed)
        request = intake.make_request(prompt, model, choices, **options)
        job_id = jobs.submit(runs_root(), request, session_id())
        jobs.ensure_worker(runs_root())
    except UserError as error:
        st.error(plain(str(error)))
        return
    go("new_run", job=job_id)


def form() -> None:
    """The whole form: the prompt on the left, everything about the runs on the right."""
    st.caption("One prompt, one model, several methods: each runs over the same text, beside the uncompressed cache.")
    left, right = st.columns([6, 5], gap="large")
    with left:
        prompt, title = prompt_section()
    with right:
        model, prompt_tokens = model_section(prompt)
        prompt = cut_section(prompt, model)
        try:
            chosen, budgets = method_section(prompt_tokens)
        except UserError as error:
            st.error(plain(str(error)))
            return
        typed = hyper_parameter_section(chosen)
        options = recording_section(title)
        if st.button("Run the comparison", type="primary", icon=":material/play_arrow:", width="stretch"):
            submit(prompt, model, chosen, budgets, typed, **options)


job = st.query_params.get("job")
if job:
    st.title("Comparison")
    show_job(job)
    if st.button("Set up another run", icon=":material/add:"):
        go("new_run")
else:
    st.title("New run")
    form()
