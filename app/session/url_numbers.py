"""Numbers in an address: of a size that a text or a list can have, or none at all."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import streamlit as st

from app.base.text import code, plain
from app.session.url_state import asked_for

NUMBER = re.compile(r"[0-9]{1,9}")
LEFT_OUT, CHECKED = "left_out_of_the_address", "address_checked_of"
NUMERIC = re.compile(r"[+-]?[0-9][0-9._]*(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)


def number_of(text: object) -> int | None:
    """The number written there; None for anything else, numbers of more than nine digits too."""
    return int(text) if isinstance(text, str) and NUMBER.fullmatch(text) else None


def asked_number(name: str) -> int | None:
    """The number of this name in the address."""
    return number_of(asked_for(name))


def asked_numbers(name: str, count: int) -> list[int] | None:
    """`count` numbers with dashes between them in the address."""
    found = [number_of(part) for part in (asked_for(name) or "").split("-")]
    numbers = [number for number in found if number is not None]
    return numbers if len(numbers) == len(found) == count else None


def forget_unknown(key: str, options: Sequence[object]) -> None:
    """A widget's value leaves the session where it is no option any more, as after a change of what is looked at."""
    if key in st.session_state and st.session_state[key] not in options:
        del st.session_state[key]


def drop_unusable() -> None:
    """Empty values and numbers that no computer holds leave the address before a widget tries to read them."""
    asked = st.query_params.to_dict()
    endless = {name: text for name, text in asked.items() if is_endless(text)}
    unusable = [*endless, *(name for name, text in asked.items() if not text)]
    for name in unusable:
        del st.query_params[name]
    if unusable:
        _draw_without(endless)
    if left_out := st.session_state.pop(LEFT_OUT, ""):
        st.warning(f"Left out of the address, as this page cannot use it: {left_out}.")


def say_refused(page: str, asked: Mapping[str, str]) -> None:
    """Of a form's address, on its first drawing: what its widgets did not take, and stand at their defaults for."""
    if page != "new_run" or st.session_state.get(CHECKED) == page:
        st.session_state[CHECKED] = page
        return
    st.session_state[CHECKED] = page
    refused = {name: text for name, text in asked.items() if name not in st.query_params and not _taken(name, text)}
    if refused:
        _draw_without(refused)


def _taken(name: str, text: str) -> bool:
    """Whether a widget stands at the address's value, which leaves the address where it is the default."""
    value = st.session_state.get(name)
    shown = value if isinstance(value, list | tuple) else [value]
    return name not in st.session_state or {str(one).lower() for one in shown} == set(text.lower().split(","))


def _draw_without(refused: Mapping[str, str]) -> None:
    """Widgets take their values from the address as it was when the script began: begin again."""
    st.session_state[LEFT_OUT] = ", ".join(f"{plain(name)} {code(text)}" for name, text in refused.items())
    st.rerun()


def is_endless(text: str) -> bool:
    """Whether this is written as a number and is none that can be reckoned with."""
    try:
        return NUMERIC.fullmatch(text) is not None and math.isinf(float(text))
    except ValueError:
        return False
