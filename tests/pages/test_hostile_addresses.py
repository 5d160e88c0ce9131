"""Addresses that no person writes: whatever a value is, a page shows something and never an exception."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import PAGES, ROOT, RUN

Open = Callable[..., AppTest]
# Each was an exception, or is of the kind of one.
VALUES = {
    "digits": "9" * 5000,
    "negative": "-1",
    "exponent": "1e999",
    "nan": "nan",
    "infinite": "inf",
    "zero": "a\0b",
    "other digits": "\u0663",
    "dashes": "-".join(["9" * 4400] * 3),
    "list": "[[[1]]]",
    "path": "../../../etc/passwd",
    "empty": "",
}
# What an address says by itself, read from the source; widgets that are bound to the address come from the page.
SOURCE = "".join(file.read_text() for file in (ROOT / "app").rglob("*.py"))
READ = set(re.findall(r"(?:get_param|set_param|url_numbers?|url_value)\(\"(\w+)\"", SOURCE)) - {"run", "comparison"}
NAMES = READ | {"layer", "head", "a", "b", "telling", "place", "facts", "kv_batch", "max_new_tokens", "words"}
KINDS = ("number_input", "slider", "selectbox", "text_input", "toggle", "multiselect", "button_group", "checkbox")


@pytest.mark.parametrize("turn", range(len(VALUES)) if os.environ.get("KVLAB_TORTURE") else [0])
@pytest.mark.parametrize("name", PAGES)
def test_no_value_is_an_exception(open_page: Open, look: Open, name: str, turn: int) -> None:
    """Every name of the address has another of the values; over all turns each has every one."""
    page = look(name)
    bound = {widget.key for kind in KINDS for widget in page.get(kind) if widget.key}
    values = list(VALUES.values())
    query = {key: values[(at + turn) % len(values)] for at, key in enumerate(sorted({*NAMES, *bound}))}
    hostile = open_page(name, run=RUN, **query)
    assert not hostile.exception, hostile.exception


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", "0"), ("max_new_tokens", "x"), ("seed", "-1"), ("level", "nope"), ("methods", "nope")],
)
def test_what_a_form_cannot_take_is_said(open_page: Callable[..., AppTest], name: str, value: str) -> None:
    page = open_page("new_run", **{name: value})
    assert [value in plain.value for plain in page.warning].count(True) == 1
    assert not [box.value for box in page.run().warning]  # said once


def test_what_a_form_takes_is_not_complained_of(open_page: Callable[..., AppTest]) -> None:
    page = open_page("new_run", max_new_tokens="64", level="light", methods="KeepKV", source="Paste", text="words")
    assert not page.warning and not page.exception
