"""What views of a page share: vectors and texts that are sent to the browser once, and named by their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import streamlit as st

from app.base.component import component
from kvlab.browser import pack_payload

_present = component("present", '<button class="kv-present" type="button">Present</button>', "present.css")


def present_button(page: str, key: str) -> None:
    """The button; `page` is the HTML, which the browser receives now."""
    _present(key=key, data={"html": page})


_component = component("shared")


class SharedData:
    """Vectors that are sent to the browser once for all views of a page; `name` identifies them."""

    def __init__(self, vectors: Mapping[str, np.ndarray]) -> None:
        self.vectors = vectors

    @cached_property
    def name(self) -> str:
        """A hash of the vectors."""
        return hashlib.sha256(pack_payload(self.vectors)).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """The vectors as sent to the browser."""
        return pack_payload({"name": self.name, **self.vectors})


class SentTexts(list[str]):
    """Token texts that are sent to the browser once for all views; `name` identifies them."""

    @cached_property
    def name(self) -> str:
        """A hash of the texts."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]

    @cached_property
    def packed(self) -> bytes:
        """The texts as sent to the browser."""
        return pack_payload({"name": self.name, "value": list(self)})


def share(view: str, **fields: SharedData | SentTexts) -> dict[str, Any]:
    """The data of a view: by field, the names of shared values, which are sent to the browser here."""
    for field, value in fields.items():
        with st.container(key=f"shared-{field}-{view}"):
            _component(key=f"shared-{field}-of-{view}", data=value.packed)
    return {"shared": {field: value.name for field, value in fields.items()}}


def texts_for(view: str, texts: list[str]) -> dict[str, Any]:
    """The data of a view: the texts, or for `SentTexts` the name of those that the browser has."""
    return share(view, texts=texts) if isinstance(texts, SentTexts) else {"texts": texts}
