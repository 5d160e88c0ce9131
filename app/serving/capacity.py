"""How many users the same memory serves, with the traffic and the limits to choose."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.base.text import plain
from app.base.theme import theme as page_theme
from app.figures.figure import show
from app.session.url_state import in_url
from kvlab.core.errors import UserError
from kvlab.figures import serving as figures
from kvlab.serving.capacity import Limits, Users, by_budget
from kvlab.serving.devices import DEVICES, assumptions, engine_of
from kvlab.serving.simulation import Lengths

MODELS = ("shape:llama3-8b", "shape:qwen3-8b", "shape:qwen2.5-7b", "shape:mistral-7b", "shape:llama2-7b")


@st.fragment
def capacity() -> None:
    """The chart, its sentence and its assumptions."""
    st.header("How many users would it serve?")
    st.markdown(
        "A simulation of an engine that admits a request when its pages fit: requests per second for which 95 % of "
        "them meet both limits, with the same memory."
    )
    columns = st.columns(3, gap="large")
    with columns[0]:
        device = st.selectbox("Device", list(DEVICES), format_func=lambda name: DEVICES[name].name, **in_url("device"))
        model = st.selectbox("Model", MODELS, format_func=lambda name: name.partition(":")[2], **in_url("served"))
    with columns[1]:
        prompt = st.slider("Tokens of a prompt (mean)", 512, 32768, 8192, 512, **in_url("prompt"))
        answer = st.slider("Tokens of an answer (mean)", 32, 4096, 1024, 32, **in_url("answer"))
    with columns[2]:
        per_token = st.slider("Most milliseconds per token", 10, 500, 50, 10, **in_url("per_token"))
        to_first = st.slider("Most seconds to the first token", 1, 60, 10, 1, **in_url("to_first"))
    try:
        table, words = simulate_rates(device, model, prompt, answer, per_token / 1e3, float(to_first))
    except UserError as error:
        st.info(plain(str(error)), icon=":material/info:")
        return
    figure, caption = figures.users_by_budget(table, page_theme()), figures.caption_users_by_budget(table)
    show(figure, table, caption, "serving-users", "users-by-budget", "kvlab serve-check --capacity")
    st.caption(plain(words))


@st.cache_data(max_entries=64, show_spinner="Simulating")
def simulate_rates(
    device: str, model: str, prompt: int, answer: int, per_token: float, to_first: float
) -> tuple[pd.DataFrame, str]:
    """Rates by budget, and what they rest on."""
    engine, place = engine_of(model, device)
    users = Users(Lengths(prompt), Lengths(answer), Limits(per_token, to_first))
    return by_budget(engine, users), assumptions(engine, place, model)
