"""The state of the view in the URL: the only module that reads and writes `st.query_params`.

A change made in a callback reaches the browser with the next page. Until the browser has applied it, its requests still
carry the old URL, as when keys are pressed faster than pages are drawn. So such changes are stored as `Pending` in the
session and applied again to every request (`apply_pending`), until the browser confirms them or they expire.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from app.base.text import code, plain

PENDING = "pending_url_changes"
PENDING_SECONDS = 20.0
PAGE = "page_in_view"
PLACE_FRAGMENT = "place"  # the fragment of a page that shows one layer and head
DRAWN_SECONDS = 2.0  # from the end of a run until the browser shows its widgets, at most
ROUND_SECONDS = 5.0  # within which a URL may be of the round before, where keys cycle through the heads
NUMBER = re.compile(r"[0-9]{1,9}")
NUMERIC = re.compile(r"[+-]?[0-9][0-9._]*(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
REJECTED = "rejected_url_parameters"
CHECKED = "page_whose_url_was_checked"


# Parameters


def params() -> dict[str, str]:
    """The parameters of the URL as the browser sent them, with the changes of this run."""
    return st.query_params.to_dict()


def get_param(name: str) -> str | None:
    """The value of a URL parameter."""
    return st.query_params.get(name)


def get_params(name: str) -> list[str]:
    """All values of a URL parameter that may be given several times."""
    return st.query_params.get_all(name)


def set_param(name: str, value: str | None, force: bool = False) -> None:
    """Set a URL parameter, or remove it with None; `force` sends it to the browser even if it is unchanged."""
    if value is None:
        st.query_params.pop(name, None)
    elif force or st.query_params.get(name) != value:
        st.query_params[name] = value


def in_url(key: str) -> dict[str, Any]:
    """Arguments of a widget whose value is also a URL parameter of the same name."""
    return {"key": key, "bind": "query-params"}


def parse_number(text: object) -> int | None:
    """The number written in `text`; None for anything else, and for numbers of more than nine digits."""
    return int(text) if isinstance(text, str) and NUMBER.fullmatch(text) else None


def url_number(name: str) -> int | None:
    """The number that `url_value` gives."""
    return parse_number(url_value(name))


def url_numbers(name: str, count: int) -> list[int] | None:
    """`count` numbers separated by hyphens."""
    parts = [parse_number(part) for part in (url_value(name) or "").split("-")]
    numbers = [number for number in parts if number is not None]
    return numbers if len(numbers) == len(parts) == count else None


# Choices that outlive a change of page: the menu drops the parameters, the session keeps them


def chosen_value(name: str) -> str | None:
    """The value last remembered under this name, on any page."""
    return st.session_state.get(f"chosen_{name}")


def remember(name: str, value: str, force: bool = False, url: bool = True) -> None:
    """Put a choice into the session, for other pages, and unless `url` is false into the URL."""
    st.session_state[f"chosen_{name}"] = value
    if url:
        set_param(name, value, force)


def forget(name: str) -> None:
    """Remove a choice from the URL and the session."""
    st.session_state.pop(f"chosen_{name}", None)
    set_param(name, None)


def current_page() -> str:
    """The page's name in the URL; empty on the first one, and where a page runs alone."""
    return str(st.session_state.get(PAGE, ""))


# Changes that the browser may not have applied yet


@dataclass(frozen=True)
class Change:
    """A new value of a parameter; `previous` are the values it may still have in requests.

    `page` is the only page that has the parameter; None where all have it.
    """

    value: str
    previous: frozenset[str | None]
    sent: float
    is_new: bool = True
    page: str | None = None

    @property
    def is_current(self) -> bool:
        """Whether the change is for this page, and young enough."""
        is_here = self.page is None or self.page == current_page()
        return is_here and time.monotonic() - self.sent < PENDING_SECONDS

    @property
    def is_undrawn(self) -> bool:
        """Whether the browser may still show the widget's value of before."""
        return time.monotonic() - self.sent < (PENDING_SECONDS if self.is_new else DRAWN_SECONDS)


@dataclass(frozen=True)
class Pending:
    """Changes of URL parameters and of the widgets that show them, by name, and how far keys have turned the heads.

    Widgets can be late where the URL is not: they come with the page, which the next key interrupts.
    """

    params: Mapping[str, Change] = field(default_factory=dict)
    widgets: Mapping[str, Change] = field(default_factory=dict)
    turned: int = 0


def pending() -> Pending:
    """The changes that the browser may not have applied yet."""
    return st.session_state.get(PENDING, Pending())


def _changed(
    changes: Mapping[str, Change], values: Mapping[str, str], current: Mapping[str, str], page: str | None = None
) -> dict[str, Change]:
    changed = dict(changes)
    for name, value in values.items():
        previous = changed[name].previous | {changed[name].value} if name in changed else frozenset()
        changed[name] = Change(value, previous | {current.get(name)}, time.monotonic(), page=page)
    return changed


def _add_changes(
    values: Mapping[str, str], widgets: Mapping[str, str], page: str | None = None, turned: int | None = None
) -> None:
    """Store changes of parameters; `widgets` has the session keys of the widgets that show them.

    One write, as the next request may stop a callback at any access to the session.
    """
    waiting = pending()
    late = waiting.widgets
    if widgets:
        undrawn = {name: change for name, change in late.items() if change.is_undrawn}
        shown = {name: str(st.session_state.get(key)) for name, key in widgets.items()}
        late = _changed(undrawn, {name: values[name] for name in widgets}, shown)
    changes = _changed(waiting.params, values, params(), page)
    st.session_state[PENDING] = Pending(changes, late, waiting.turned if turned is None else turned)


def go_to(turned: int | None = None, **place: int) -> None:
    """Show this layer, head, step or token from now on, on every page; the other of layer and head stays.

    `turned` is how far keys had turned the heads. For a callback; the run that follows applies it (`apply_pending`).
    """
    if ("layer" in place) != ("head" in place):
        other = "head" if "layer" in place else "layer"
        place |= {other: st.session_state.get(f"pick_{other}") or 0}
    values = {name: str(value) for name, value in place.items()}
    _add_changes(values, {name: f"pick_{name}" for name in place}, turned=turned)


def go_to_and_redraw(**place: int) -> None:
    """As `go_to`, for a click on something outside of `PLACE_FRAGMENT`, which is redrawn."""
    go_to(**place)
    with suppress(StreamlitAPIException):  # a page without the fragment is redrawn as a whole
        st.rerun(PLACE_FRAGMENT)


def set_page_param(name: str, value: object, widget: str | None = None) -> None:
    """Set a parameter of this page alone, such as a slot; for a callback.

    `widget` is the session key of the widget that shows it, whose value of before is then ignored for a while.
    """
    _add_changes({name: str(value)}, {name: widget} if widget else {}, current_page())
    set_param(name, str(value), force=True)


def set_page_param_from(name: str, widget: str) -> None:
    """As `set_page_param`, with a widget's value; ignored where the browser had not drawn the last change yet."""
    value = st.session_state[widget]
    if not _is_late(pending().widgets.get(name), str(value)):
        set_page_param(name, value)


def clear_page_param(name: str) -> None:
    """Remove a parameter of this page; for a callback."""
    waiting = pending()
    others = {other: change for other, change in waiting.params.items() if other != name}
    st.session_state[PENDING] = replace(waiting, params=others)
    set_param(name, None)


def choose(picked: Mapping[str, object]) -> None:
    """Put the values of the bar's pickers into the URL, over pending changes.

    Ignored where all of them are as before the browser drew the last change: the user did not choose that.
    """
    waiting = pending()
    if all(_is_late(waiting.widgets.get(name), str(value)) for name, value in picked.items()):
        return
    others = {name: change for name, change in waiting.params.items() if name not in picked}
    st.session_state[PENDING] = replace(waiting, params=others)
    for name, value in picked.items():
        if value is not None:
            remember(name, str(value))


def apply_pending() -> None:
    """Apply pending changes to the URL of this request; call before the page runs.

    New ones are sent even where the URL has the value already: keys that cycle come by the same place again, and the
    browser may be about to apply a place in between.
    """
    waiting = pending()
    current = params()
    if not waiting.params:
        return
    left = {}
    for name, change in waiting.params.items():
        # A request with the new value shows that the browser has applied the change. A value that the parameter had
        # before proves nothing for a while: it may be of the round before.
        is_ambiguous = change.value in change.previous and time.monotonic() - change.sent < ROUND_SECONDS
        is_confirmed = not change.is_new and current.get(name) == change.value and not is_ambiguous
        if change.is_current and not is_confirmed:
            left[name] = replace(change, is_new=False)
    if any(current.get(name) not in change.previous | {change.value} for name, change in left.items()):
        left = {}  # the user followed a link to another place
    for name, change in left.items():
        (remember if change.page is None else set_param)(name, change.value, force=waiting.params[name].is_new)
    st.session_state[PENDING] = replace(waiting, params=left)


def mark_drawn() -> None:
    """Note that the run's widgets are on their way to the browser; call when the page has run."""
    waiting = pending()
    if any(change.is_new for change in waiting.widgets.values()):
        drawn = {name: replace(change, sent=time.monotonic(), is_new=False) for name, change in waiting.widgets.items()}
        st.session_state[PENDING] = replace(waiting, widgets=drawn)


def pending_value(name: str) -> str | None:
    """The pending value of a parameter."""
    change = pending().params.get(name)
    return None if change is None else change.value


def url_value(name: str) -> str | None:
    """The value of a parameter, or the pending one that replaces it."""
    value = get_param(name)
    change = pending().params.get(name)
    if change is None or value not in change.previous or not change.is_current:
        return value
    return change.value


def _is_late(change: Change | None, value: str) -> bool:
    return change is not None and value in change.previous | {change.value} and change.is_undrawn


# Values that widgets cannot take


def drop_stale_option(key: str, options: Sequence[object]) -> None:
    """Remove a widget's value from the session where it is no longer an option."""
    if key in st.session_state and st.session_state[key] not in options:
        del st.session_state[key]


def drop_unusable_params() -> None:
    """Remove empty values and infinite numbers from the URL before a widget reads them, with a warning."""
    current = params()
    infinite = {}
    for name, text in current.items():
        with suppress(ValueError):
            if NUMERIC.fullmatch(text) and math.isinf(float(text)):
                infinite[name] = text
    unusable = [*infinite, *(name for name, text in current.items() if not text)]
    for name in unusable:
        set_param(name, None)
    if unusable:
        _rerun_without(infinite)
    if rejected := st.session_state.pop(REJECTED, ""):
        st.warning(f"This page cannot use these parameters of the URL: {rejected}.")


def warn_of_rejected_params(page: str, requested: Mapping[str, str]) -> None:
    """After the first run of the form of New: warn of URL parameters that its widgets rejected for their defaults."""
    if page != "new_run" or st.session_state.get(CHECKED) == page:
        st.session_state[CHECKED] = page
        return
    st.session_state[CHECKED] = page
    current = params()
    rejected = {}
    for name, text in requested.items():
        value = st.session_state.get(name)
        values = value if isinstance(value, list | tuple) else [value]
        # Streamlit removes default values from the URL, so the widget may have the value all the same.
        is_taken = name not in st.session_state or {str(item).lower() for item in values} == set(
            text.lower().split(",")
        )
        if name not in current and not is_taken:
            rejected[name] = text
    if rejected:
        _rerun_without(rejected)


def _rerun_without(rejected: Mapping[str, str]) -> None:
    """Widgets read the URL as it was when the run began, so start another run."""
    st.session_state[REJECTED] = ", ".join(f"{plain(name)} {code(text)}" for name, text in rejected.items())
    st.rerun()
