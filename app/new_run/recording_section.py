"""The sections of New run about what is decoded and recorded."""

from __future__ import annotations

from typing import Any, get_args

import streamlit as st

from app.base.widgets import one_of, private_switch
from app.new_run.long_prompt import NEW_TOKENS
from app.session.url_state import in_url
from kvlab.forms import compare_form
from kvlab.requests.generation_settings import GenerationSettings

LEVELS = {
    "full": "Full: every event, keys and attention rows. All pages work; needs the most memory and disk.",
    "light": "Light: counts and memory per step and layer. No timeline and no similarity maps.",
    "off": "Off: texts and speed only, with no recording overhead.",
}
GENERATION_CONFIG = (
    "Whether to apply the checkpoint's own generation settings, such as penalties and suppressed tokens, as generate "
    "does."
)


def length_and_level() -> dict[str, Any]:
    """The number of new tokens and the record level, in the row that is open."""
    tokens = st.number_input(
        "New tokens", 1, 4096, NEW_TOKENS, **in_url("max_new_tokens"), help="Decoded after the prompt", width=140
    )
    level = one_of("Record", list(LEVELS), "full", key="level", help="  \n".join(LEVELS.values()), width="content")
    return {"max_new_tokens": tokens, "level": level}


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
        record = _arrays_section() if level == "full" else ""
    return {
        "private": private_switch(),
        "title": title or default_title,
        "compress_every": every,
        "prefill_chunk": chunk or None,
        "seed": seed,
        "record": record,
        "generation_config": generation_config,
    }


def _arrays_section() -> str:
    """The layers, KV heads and steps whose arrays are recorded, in the format of `--record`."""
    st.caption(
        "Restrict the recorded arrays: keys and values, attention rows, and the probe. Tables are always complete."
    )
    layers, heads, every = st.columns(3)
    chosen_layers = layers.text_input("Layers", **in_url("record_layers"), placeholder="all", help="Such as 0-3,8")
    chosen_heads = heads.text_input("KV heads", **in_url("record_heads"), placeholder="all", help="For example 0,2")
    steps = every.number_input("Attention rows every … steps", 1, 4096, 1, **in_url("record_every"))
    return compare_form.record_text(chosen_layers, chosen_heads, steps)
