"""The browser's address as it will be: what was asked for by a key or a click, until the browser has heard of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import streamlit as st
from streamlit.errors import StreamlitAPIException

ON_THE_WAY, LATE_SECONDS = "places_on_the_way", 20.0
PAGE = "page_in_view"
PLACE = "place"  # names the part of a page that shows one layer and head, and is drawn again for another one
DRAWN_SECONDS = 2.0  # from the end of a run until the browser shows what its lists say, at most
ROUND_SECONDS = 5.0  # in which an address may be of the round before, where keys go round


@dataclass(frozen=True)
class Way:
    """A value for the address that the browser may not have heard of; `before` is what the address said until then.

    `page` is the only page that knows the name; None where all do.
    """

    value: str
    before: frozenset[str | None]
    sent: float
    new: bool = True
    page: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether the page in view knows the name."""
        return self.page is None or self.page == page_in_view()

    def is_heard(self, asked: str | None) -> bool:
        """Whether an address that says `asked` shows that the browser has heard of the value.

        A value that the address had before proves nothing for a while: it may be that of the round before.
        """
        again = self.value in self.before and time.monotonic() - self.sent < ROUND_SECONDS
        return not self.new and asked == self.value and not again


@dataclass(frozen=True)
class OnTheWay:
    """Every such value by its name, how far keys have turned the heads, and what lists in the bar will say.

    A list may be late where the address is not: it comes with the page, which the next key stops.
    """

    ways: Mapping[str, Way] = field(default_factory=dict)
    turned: int = 0
    lists: Mapping[str, Way] = field(default_factory=dict)


def go_to(turned: int | None = None, **place: int) -> None:
    """Look at this layer, head, step or token from now on, on every page; the other of layer and head stays.

    `turned` is how far keys had turned the heads when this was asked. In a callback the next request may stop any
    access to the session, so all is one write; the run that follows takes it over (`catch_up`).
    """
    if ("layer" in place) != ("head" in place):
        other = "head" if "layer" in place else "layer"
        place |= {other: st.session_state.get(f"pick_{other}") or 0}
    asked, known = st.query_params.to_dict(), st.session_state.get(ON_THE_WAY, OnTheWay())
    ways = _further(known.ways, place, asked)
    late = {name: way for name, way in known.lists.items() if _is_undrawn(way)}
    lists = _further(late, place, {name: str(st.session_state.get(f"pick_{name}")) for name in place})
    st.session_state[ON_THE_WAY] = OnTheWay(ways, known.turned if turned is None else turned, lists)


def go_there(**place: int) -> None:
    """As `go_to`, for a click outside or in a part of what shows the place: all that shows it is drawn again."""
    go_to(**place)
    with suppress(StreamlitAPIException):  # a page without such a part is drawn whole
        st.rerun(PLACE)


def keep(name: str, value: object, listed: str | None = None) -> None:
    """What the page in view alone knows by this name, a slot or a token, is `value` from now on; for a callback.

    A request that was on its way undoes it as little as what `go_to` was asked for, nor does what the list `listed`
    said before (`keep_listed`).
    """
    asked, known = st.query_params.to_dict(), st.session_state.get(ON_THE_WAY, OnTheWay())
    ways, lists = _further(known.ways, {name: value}, asked, page_in_view()), known.lists
    if listed is not None:
        late = {other: way for other, way in lists.items() if _is_undrawn(way)}
        lists = _further(late, {name: value}, {name: str(st.session_state.get(listed))})
    st.session_state[ON_THE_WAY] = replace(known, ways=ways, lists=lists)
    st.query_params[name] = str(value)


def keep_listed(name: str, listed: str) -> None:
    """As `keep`, of what this list says; nothing where it says what it did before the browser drew it anew."""
    value = st.session_state[listed]
    if not _is_late(st.session_state.get(ON_THE_WAY, OnTheWay()).lists.get(name), str(value)):
        keep(name, value)


def let_go(name: str) -> None:
    """The page in view has nothing by this name any more; for a callback."""
    known = st.session_state.get(ON_THE_WAY, OnTheWay())
    ways = {other: way for other, way in known.ways.items() if other != name}
    st.session_state[ON_THE_WAY] = replace(known, ways=ways)
    st.query_params.pop(name, None)


def page_in_view() -> str:
    """The page's name in the address; empty on the first one, and where a page is run alone."""
    return str(st.session_state.get(PAGE, ""))


def _further(
    known: Mapping[str, Way], place: Mapping[str, object], now: Mapping[str, str], page: str | None = None
) -> dict[str, Way]:
    """The ways with those to `place`, from what is said `now` and all that was on the way."""
    ways = dict(known)
    for name in place:
        before = ways[name].before | {ways[name].value} if name in ways else frozenset()
        ways[name] = Way(str(place[name]), before | {now.get(name)}, time.monotonic(), page=page)
    return ways


def catch_up() -> None:
    """Call before the page runs: puts what `go_to` asked for into the address, until the browser has heard of it.

    Requests sent before that still carry the address from before, as when keys are pressed faster than a page is drawn.
    What is new is told even where the address says so already: keys that go round come by the same place again, and a
    browser that is there from the round before may be about to hear of a place in between.
    """
    known, asked = st.session_state.get(ON_THE_WAY, OnTheWay()), st.query_params.to_dict()
    if not known.ways:
        return
    left = {
        name: replace(way, new=False)
        for name, way in known.ways.items()
        if way.is_here and time.monotonic() - way.sent < LATE_SECONDS and not way.is_heard(asked.get(name))
    }
    if any(asked.get(name) not in way.before | {way.value} for name, way in left.items()):
        left = {}  # somebody followed a link to another place
    for name, way in left.items():
        say = remember if way.page is None else put
        say(name, way.value, again=known.ways[name].new)
    st.session_state[ON_THE_WAY] = replace(known, ways=left)


def turned_so_far() -> int:
    """How far keys had turned the heads at the last `go_to` that said so."""
    return st.session_state.get(ON_THE_WAY, OnTheWay()).turned


def settled() -> None:
    """Call when the page has run: its lists of layers and heads are on their way to the browser."""
    known = st.session_state.get(ON_THE_WAY, OnTheWay())
    if any(way.new for way in known.lists.values()):
        lists = {name: replace(way, sent=time.monotonic(), new=False) for name, way in known.lists.items()}
        st.session_state[ON_THE_WAY] = replace(known, lists=lists)


def choose(picked: Mapping[str, object]) -> None:
    """What lists in the bar say becomes the address, over what is on the way there.

    Nothing does where they are as they were before the browser drew a new place: no reader chose that.
    """
    known = st.session_state.get(ON_THE_WAY, OnTheWay())
    if all(_is_late(known.lists.get(name), str(value)) for name, value in picked.items()):
        return
    ways = {name: way for name, way in known.ways.items() if name not in picked}
    st.session_state[ON_THE_WAY] = replace(known, ways=ways)
    for name, value in picked.items():
        if value is not None:
            remember(name, str(value))


def _is_late(way: Way | None, value: str) -> bool:
    return way is not None and value in way.before | {way.value} and _is_undrawn(way)


def _is_undrawn(way: Way) -> bool:
    return time.monotonic() - way.sent < (LATE_SECONDS if way.new else DRAWN_SECONDS)


def on_the_way(name: str) -> str | None:
    """The value of this name that was asked for and may not stand in the address yet."""
    way = st.session_state.get(ON_THE_WAY, OnTheWay()).ways.get(name)
    return None if way is None else way.value


def asked_for(name: str) -> str | None:
    """What the address says, or will say as soon as the browser has heard."""
    asked, way = st.query_params.get(name), st.session_state.get(ON_THE_WAY, OnTheWay()).ways.get(name)
    if way is None or not way.is_here or asked not in way.before:
        return asked
    return way.value if time.monotonic() - way.sent < LATE_SECONDS else asked


def remember(name: str, value: str, again: bool = False) -> None:
    """Put a choice into the address, and into the session for other pages."""
    st.session_state[f"chosen_{name}"] = value  # the menu drops the query string, the session does not
    put(name, value, again)


def put(name: str, value: str, again: bool = False) -> None:
    """Put a choice into the address, `again` even if it is there."""
    if again or st.query_params.get(name) != value:
        st.query_params[name] = value


def keep_named(opened: str | None) -> None:
    """Call before the page runs: the run and comparison that a link names are for later pages too.

    A page that looks at no run does not remember them. `opened` is the run that a page opened by itself.
    """
    for name in ("run", "comparison"):
        asked = st.query_params.get(name)
        if asked and asked != opened:
            st.session_state[f"chosen_{name}"] = asked


def forget(name: str) -> None:
    """Take a choice out of both."""
    st.session_state.pop(f"chosen_{name}", None)
    st.query_params.pop(name, None)
