"""Buttons of what not everybody may do: who may not sees them dead, with the reason.

What is shown here protects nothing: roles and owners are asked where things happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import streamlit as st

from kvlab.server.users import Role, acting, is_owner

LOOKS = "You may look here: starting and changing things takes the role run."
OTHERS = "Only its owner and an administrator may change this."


def why_not() -> str:
    """Why the person who asks may start, make and save nothing; empty where they may."""
    return "" if acting().role >= Role.RUN else LOOKS


def why_not_change(owners: Iterable[str]) -> str:
    """Why they may not change what belongs to these owners; empty where they may."""
    return why_not() or ("" if all(is_owner(owner) for owner in owners) else OTHERS)


def button(label: str, why: str, **options: Any) -> bool:
    """A button; dead where `why` says something."""
    return st.button(label, **dead(why, **options))


def dead(why: str, **options: Any) -> dict[str, Any]:
    """The options of a widget, those of a dead one where `why` says something."""
    return options | {"disabled": True, "help": why} if why else options
