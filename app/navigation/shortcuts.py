"""Keyboard shortcuts of a page: next and previous head, and the list of all keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import streamlit as st

from app.base.component import component
from app.navigation import context_bar
from app.navigation.place import place_of, recorded_layers
from app.session.streamlit_internals import is_fragment_run
from app.session.url_state import go_to, heads_turned
from kvlab.trace.reader import Run

KEY = "page-keys"
HTML = """
<div class="kv-keys">
  <button class="open" title="Keyboard shortcuts of this page (?)">shortcuts ?</button>
  <dialog aria-label="Keyboard shortcuts of this page">
    <h2>Keyboard shortcuts</h2><dl></dl><button class="close">close</button>
  </dialog>
</div>
"""
Keys = tuple[tuple[str, str], ...]  # with their actions
STEP_KEYS: Keys = (
    ("← →", "one step back or forward"),
    ("Home, End", "first or last step"),
    ("n", "next step in which a slot was evicted or merged"),
    ("space", "play or pause"),
)
HEAD_KEYS = (("j or ]", "next head, then the next layer"), ("k or [", "previous head"))
HELP_KEYS = (("?", "show or hide this list"),)

_component = component("shortcuts", HTML, "shortcuts.css")


def page_keys(
    run: Run | None = None, *, steps: bool = True, more: Keys = (), targets: Mapping[str, str] | None = None
) -> None:
    """A small button that lists the keys; with `run`, j and k go through its heads.

    `targets` are by key the selectors of a field that gets the focus or of a button that is clicked; `more` lists them.
    """
    listed = (STEP_KEYS if steps else ()) + (HEAD_KEYS if run else ()) + more + HELP_KEYS
    data = {"keys": [list(pair) for pair in listed], "heads": run is not None, "targets": dict(targets or {})}
    with context_bar.row(), st.container(key="context-keys", width="content"):
        _component(key=KEY, data=data, on_turned_change=partial(_turned, run))
    if run and _turn(run):  # the next request interrupted the callback, which is not called again
        st.rerun("fragment" if is_fragment_run() else "app")


def next_head(layer: int, head: int, by: int, layers: list[int], heads: int) -> tuple[int, int]:
    """The layer and head `by` places further, through all recorded layers and cyclic at the ends."""
    place = (layers.index(layer) * heads + head + by) % (len(layers) * heads)
    return layers[place // heads], place % heads


def _turned(run: Run | None) -> None:
    if run:
        _turn(run)


def _turn(run: Run) -> bool:
    """Go to the head that the keys have turned to since the last call; whether it is another one."""
    turned = (st.session_state.get(KEY) or {}).get("turned")
    layers = recorded_layers(run)
    layer, head = place_of(run)
    if turned is None or turned == heads_turned() or layer not in layers:
        return False
    layer, head = next_head(layer, head, int(turned) - heads_turned(), layers, run.record.model.num_key_value_heads)
    go_to(int(turned), layer=layer, head=head)
    return True
