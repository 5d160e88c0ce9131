"""The figures, tables and texts that a page has shown, in order, for slides of the whole view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st

from kvlab.report.views import Shown
from kvlab.views.base.provenance import FigureSource

ITEMS = "shown_on_page"


@dataclass(frozen=True)
class Item:
    """A chart, table or text with its title; `build` is called when a slide needs it.

    A table has no picture.
    """

    title: str
    build: Callable[[], go.Figure | Shown]
    caption: str = ""
    source: FigureSource = ""
    has_picture: bool = True


def record_item(key: str, item: Item) -> None:
    """Record an item that the page shows; one that is redrawn keeps its place."""
    st.session_state.setdefault(ITEMS, {})[key] = item


def telling_items() -> list[Item]:
    """The items with a picture, or without one all of them: what slides of the whole view are made of."""
    items = list(st.session_state.get(ITEMS, {}).values())
    return [item for item in items if item.has_picture] or items


def clear_items() -> None:
    """Call where a page begins."""
    st.session_state[ITEMS] = {}
