"""Buttons that require a role or ownership: disabled, with the reason, for users without it.

This protects nothing: permissions are checked where the actions are carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import streamlit as st

from kvlab.server.users import Role, acting, is_owner

LOOKS = "Your role is read-only: to start or change something, you need the role run."
OTHERS = "Only its owner and an administrator may change this."


def why_not() -> str:
    """Why the current user may not start or save anything; empty if they may."""
    return "" if acting().role >= Role.RUN else LOOKS


def why_not_change(owners: Iterable[str]) -> str:
    """Why the current user may not change something of these owners; empty if they may."""
    return why_not() or ("" if all(is_owner(owner) for owner in owners) else OTHERS)


def button(label: str, why: str, **options: Any) -> bool:
    """A button, disabled if `why` is not empty."""
    return st.button(label, **widget_options(why, **options))


def widget_options(why: str, **options: Any) -> dict[str, Any]:
    """The options of a widget, disabled if `why` is not empty."""
    return options | {"disabled": True, "help": why} if why else options
