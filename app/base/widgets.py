"""Widgets and error boxes that several pages use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from app.base.text import plain
from app.session.url_state import in_url
from kvlab.common.lab import is_owner, lab
from kvlab.core.errors import UserError

T = TypeVar("T", bound=str)
OTHERS = "Only its owner may change this."


def one_of(
    label: str, options: Sequence[T] | Mapping[T, str], default: T | None = None, *, key: str, **further: Any
) -> T:
    """A segmented control in the URL, with one option always chosen; a mapping gives the options' labels."""
    values = list(options)
    if isinstance(options, Mapping):
        further["format_func"] = options.__getitem__
    start = values[0] if default is None else default
    return st.segmented_control(label, values, default=start, required=True, **in_url(key), **further)


def private_switch(key: str = "private") -> bool:
    """Whether the results are private; False without a switch where there is only one user."""
    return lab() is not None and st.toggle("Private", help="Only you can see the results.", **in_url(key))


def why_not_change(owners: Iterable[str]) -> str:
    """Why the current user may not change something of these owners; empty if they may. The library checks it too."""
    return "" if all(is_owner(owner) for owner in owners) else OTHERS


def button_unless(label: str, why: str, **options: Any) -> bool:
    """A button, disabled if `why` is not empty."""
    return st.button(label, **widget_options(why, **options))


def widget_options(why: str, **options: Any) -> dict[str, Any]:
    """The options of a widget, disabled if `why` is not empty."""
    return options | {"disabled": True, "help": why} if why else options


def attempt(action: Callable[[], object]) -> bool:
    """Run an action and show its UserError; returns whether it succeeded."""
    try:
        action()
    except UserError as error:
        st.error(plain(str(error)))
        return False
    return True
