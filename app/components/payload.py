"""What a component is given, as bytes: vectors as they lie in memory, behind the JSON of all else.

Streamlit writes JSON twice, once to send it and once to see whether it changed; for six numbers a token of a text of
131,072 tokens that takes as long as all else on a page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import streamlit as st

from kvlab.browser import read_static

ALIGNED = 8  # bytes: where a vector of any type may begin


def packed(data: Mapping[str, Any]) -> bytes:
    """The header's length (4 bytes, little-endian), the header, then the vectors; `payload.js` reads it.

    Every numpy array of `data` becomes a typed array of the same type in the browser, its numbers in a row.
    """
    vectors = {name: value for name, value in data.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in data.items() if name not in vectors}
    places, behind, size = {}, [], 0
    for name, vector in vectors.items():
        places[name] = [vector.dtype.name, size, vector.size]
        own = np.ascontiguousarray(vector).tobytes()
        behind += [own, bytes(-len(own) % ALIGNED)]
        size += vector.nbytes + len(behind[-1])
    header = json.dumps({"plain": plain, "vectors": places}).encode()
    header += b" " * (-(4 + len(header)) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *behind])


_component = st.components.v2.component("kvlab_texts", html="<span></span>", js=read_static("texts.js"))


class SentTexts(list[str]):
    """Texts that are kept for many views; `name` says which they are."""

    @cached_property
    def name(self) -> str:
        """Another one for other texts."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """As `app.components.payload` has them."""
        return packed({"name": self.name, "texts": list(self)})


def texts_for(view: str, texts: list[str]) -> dict[str, Any]:
    """What the view of this key is given: the texts, or the name of those that come beside it, where they are kept."""
    if not isinstance(texts, SentTexts):
        return {"texts": texts}
    with st.container(key=f"texts-{view}"):
        _component(key=f"texts-of-{view}", data=texts.packed)
    return {"textsName": texts.name}
