"""A control in the sidebar for the theme: light, dark or the system's, stored in the browser."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.base.component import component

CHOICES = {"Light": "☀", "System": "◐", "Dark": "☾"}
BUTTONS = "".join(
    f'<button type="button" role="radio" data-theme="{name}" title="{name}" aria-label="{name}">{sign}</button>'
    for name, sign in CHOICES.items()
)

_component = component(
    "theme-switch", f'<div class="kv-theme" role="radiogroup" aria-label="Theme">{BUTTONS}</div>', "theme-switch.css"
)


def theme_switch(paths: Sequence[str]) -> None:
    """The control; `paths` are those of all pages, as Streamlit stores a theme for each."""
    with st.sidebar:
        _component(key="theme-switch", data={"paths": list(paths)}, on_chosen_change=lambda: None)
