"""Light, dark or as the system has it: a control in the sidebar of every page, kept in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

STATIC = Path(__file__).parent / "static"
CHOICES = {"Light": "☀", "System": "◐", "Dark": "☾"}
BUTTONS = "".join(
    f'<button type="button" role="radio" data-theme="{name}" title="{name}" aria-label="{name}">{sign}</button>'
    for name, sign in CHOICES.items()
)

_component = st.components.v2.component(
    "kvlab_theme_switch",
    html=f'<div class="kv-theme" role="radiogroup" aria-label="Theme">{BUTTONS}</div>',
    css=(STATIC / "theme-switch.css").read_text(encoding="utf-8"),
    js=(STATIC / "theme-switch.js").read_text(encoding="utf-8"),
)


def theme_switch(paths: Sequence[str]) -> None:
    """The control; `paths` are those of all pages, as Streamlit keeps a theme for each of them."""
    with st.sidebar:
        _component(key="theme-switch", data={"paths": list(paths)}, on_chosen_change=lambda: None)
