"""The texts of a run's tokens, which a browser is sent once, not with every change of the views that show them.

For 131,072 tokens they are half of all that a view needs. They come in an element of their own: one that stays the same
Streamlit names to a browser that has it, instead of sending it again.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any

import streamlit as st

from app.components.binary_payload import packed
from kvlab.browser import read_static

_component = st.components.v2.component("kvlab_texts", html="<span></span>", js=read_static("texts.js"))


class SentTexts(list[str]):
    """Texts that are kept for many views; `name` says which they are."""

    @cached_property
    def name(self) -> str:
        """Another one for other texts."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """As `app.components.binary_payload` has them."""
        return packed({"name": self.name, "texts": list(self)})


def texts_for(view: str, texts: list[str]) -> dict[str, Any]:
    """What the view of this key is given: the texts, or the name of those that come beside it, where they are kept."""
    if not isinstance(texts, SentTexts):
        return {"texts": texts}
    with st.container(key=f"texts-{view}"):
        _component(key=f"texts-of-{view}", data=texts.packed)
    return {"textsName": texts.name}
