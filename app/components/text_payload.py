"""Token texts of a run, sent to the browser once instead of with every change of the views that show them.

For 131,072 tokens they are half of a view's data. They are in a component of their own: Streamlit does not send an
unchanged message again.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any

import streamlit as st

from app.components.binary_payload import pack
from kvlab.browser import read_static

_component = st.components.v2.component("kvlab_texts", html="<span></span>", js=read_static("texts.js"))


class SentTexts(list[str]):
    """Token texts shared by several views, identified by `name`."""

    @cached_property
    def name(self) -> str:
        """A hash of the texts."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """The bytes for the browser (`app.components.binary_payload`)."""
        return pack({"name": self.name, "texts": list(self)})


def texts_for(view: str, texts: list[str]) -> dict[str, Any]:
    """Data of the view with this key: its texts, or the name of shared texts, which are sent here."""
    if not isinstance(texts, SentTexts):
        return {"texts": texts}
    with st.container(key=f"texts-{view}"):
        _component(key=f"texts-of-{view}", data=texts.packed)
    return {"textsName": texts.name}
