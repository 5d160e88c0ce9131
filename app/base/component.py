"""Components of the dashboard that have a browser script of their own."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvlab.browser import read_static


def component(script: str, html: str = "<span></span>", *styles: str) -> Any:
    """The component of `kvlab/browser/static/SCRIPT.js`, with its markup and the style sheets of that folder."""
    name = f"kvlab_{script.replace('-', '_')}"
    css = read_static(*styles) if styles else None
    return st.components.v2.component(name, html=html, css=css, js=read_static(f"{script}.js"))
