"""What was asked for by a key or a click counts, whatever address a request brings that was on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.runtime.scriptrunner_utils.exceptions import RerunException
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData
from streamlit.runtime.state.query_params import QueryParams
from streamlit.testing.v1 import AppTest

from tests.pages.small import PATIENCE_SECONDS, opened, query, text
from tests.synthetic.runs import write_synthetic_run


def going_page() -> None:
    import streamlit as st

    from app.navigation.place import pick_head, pick_layer
    from app.navigation.selection import current_run
    from app.session.url_state import apply_pending, go_to, mark_drawn

    if st.session_state.pop("press", False):  # what a key does, before the page runs
        go_to(layer=1, head=1)
    apply_pending()
    run = current_run()
    st.text(f"{pick_layer(run)} {pick_head(run)}")
    mark_drawn()


def test_a_request_sent_before_the_browser_heard_of_a_new_place_does_not_undo_it(runs_root: Path):
    write_synthetic_run(runs_root, method="keepkv", layers=2, heads=2)
    page = opened(going_page, layer="0", head="0")
    assert text(page) == "0 0"
    page.session_state["press"] = True
    page.run()
    for _ in range(2):  # the old address, as often as it comes
        page.query_params["layer"], page.query_params["head"] = "0", "0"
        assert text(page.run()) == "1 1"
    assert text(page.run()) == "1 1", "the browser has heard"
    page.query_params["layer"], page.query_params["head"] = "0", "0"
    assert text(page.run()) == "0 0", "from then on an address means what it says: somebody went back"


def own_page() -> None:
    """A page that alone knows a slot, chosen in a callback; `at` says which page is in view."""
    import streamlit as st

    from app.session.url_state import PAGE, apply_pending, clear_page_param, set_page_param, url_number

    slots = {"slot": lambda: set_page_param("slot", 7), "none": lambda: clear_page_param("slot")}
    st.session_state[PAGE] = st.session_state.get("at", "lineage")
    apply_pending()
    st.text(str(url_number("slot")))
    for name, does in slots.items():
        st.button(name, on_click=does, key=name)


def test_what_a_page_alone_knows_is_not_undone_by_a_request_sent_before_and_never_told_to_another_page():
    page = opened(own_page, slot="3")
    page.button(key="slot").click()
    assert text(page.run()) == "7"
    for _ in range(2):  # the old address, as often as it comes
        page.query_params["slot"] = "3"
        assert text(page.run()) == "7"
        assert query(page)["slot"] == "7"
    page.session_state["at"] = "timeline"
    del page.query_params["slot"]  # as the menu does
    assert text(page.run()) == "None"
    assert "slot" not in query(page)
    page.session_state["at"] = "lineage"
    assert text(page.run()) == "None", "somebody went away and came back"


def listing_page() -> None:
    """A page whose slot is clicked in a picture or chosen in a list."""
    import streamlit as st

    from app.session.url_state import apply_pending, mark_drawn, set_page_param, set_page_param_from, url_number

    if st.session_state.pop("click", False):  # what a callback does, before the page runs
        set_page_param("slot", 7, "list")
    apply_pending()
    st.session_state["list"] = url_number("slot") or 3
    st.text(str(st.session_state["list"]))
    st.selectbox("Slot", [3, 5, 7], key="list", on_change=lambda: set_page_param_from("slot", "list"))
    mark_drawn()


def test_a_list_that_is_not_drawn_anew_yet_does_not_undo_a_click(monkeypatch: pytest.MonkeyPatch):
    """A request between a click and its picture carries what the list said before."""
    monkeypatch.setattr("app.session.url_state.DRAWN_SECONDS", PATIENCE_SECONDS)
    page = AppTest.from_function(listing_page, default_timeout=PATIENCE_SECONDS).run()
    assert text(page) == "3"
    page.session_state["click"] = True
    assert text(page.run()) == "7"
    assert text(page.selectbox(key="list").set_value(3).run()) == "7", "it says what it did before the click"
    assert query(page)["slot"] == "7"
    assert text(page.selectbox(key="list").set_value(5).run()) == "5", "it never said this: somebody chose it"
    assert query(page)["slot"] == "5"


def test_what_is_chosen_in_a_list_after_a_click_is_drawn_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.session.url_state.DRAWN_SECONDS", 0.0)
    page = AppTest.from_function(listing_page, default_timeout=PATIENCE_SECONDS).run()
    page.session_state["click"] = True
    assert text(page.run()) == "7"
    assert text(page.selectbox(key="list").set_value(3).run()) == "3"


def test_a_choice_counts_where_the_next_request_stopped_its_callback(monkeypatch: pytest.MonkeyPatch):
    """Streamlit stops a callback at its next access to the address; that request was sent before it could hear."""
    page, put, first = opened(own_page, slot="3"), QueryParams.__setitem__, iter([True])

    def stopped(self: QueryParams, name: str, value: str) -> None:
        if next(first, False):
            raise RerunException(RerunData(query_string="slot=3"))
        put(self, name, value)

    monkeypatch.setattr(QueryParams, "__setitem__", stopped)
    page.button(key="slot").click()
    assert text(page.run()) == "7"
    assert query(page)["slot"] == "7"


def test_what_a_page_has_let_go_of_does_not_come_back():
    page = opened(own_page)
    page.button(key="slot").click()
    assert text(page.run()) == "7"
    page.button(key="none").click()
    assert text(page.run()) == "None"
    assert "slot" not in query(page)


def choose(page: AppTest, layer: int, head: int) -> None:
    page.selectbox(key="pick_layer").set_value(layer)
    page.selectbox(key="pick_head").set_value(head)


def test_lists_that_are_not_drawn_anew_yet_do_not_undo_a_key(runs_root: Path, monkeypatch: pytest.MonkeyPatch):
    """A key that is pressed while the page is on its way carries what the lists said before."""
    monkeypatch.setattr("app.session.url_state.DRAWN_SECONDS", PATIENCE_SECONDS)
    write_synthetic_run(runs_root, method="keepkv", layers=3, heads=2)
    page = opened(going_page, layer="0", head="0")
    page.session_state["press"] = True
    assert text(page.run()) == "1 1"
    assert text(page.run()) == "1 1", "the browser has heard of the address"
    choose(page, 0, 0)
    assert text(page.run()) == "1 1"
    assert query(page)["layer"] == "1"
    choose(page, 2, 1)
    assert text(page.run()) == "2 1", "the lists never said this: somebody chose it"


def test_what_is_chosen_in_a_list_after_the_page_is_drawn_counts(runs_root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.session.url_state.DRAWN_SECONDS", 0.0)
    write_synthetic_run(runs_root, method="keepkv", layers=2, heads=2)
    page = opened(going_page, layer="0", head="0")
    page.session_state["press"] = True
    assert text(page.run()) == "1 1"
    choose(page, 0, 1)
    assert text(page.run()) == "0 1"


def test_a_place_that_keys_come_by_again_is_told_again(runs_root: Path, monkeypatch: pytest.MonkeyPatch):
    """The address may be of the round before, and the browser still about to hear of a place in between."""
    told: list[tuple[str, str]] = []
    put = QueryParams.__setitem__

    def note(self: QueryParams, name: str, value: str) -> None:
        told.append((name, value))
        put(self, name, value)

    monkeypatch.setattr(QueryParams, "__setitem__", note)
    write_synthetic_run(runs_root, method="keepkv", layers=2, heads=2)
    page = opened(going_page, layer="1", head="1")
    told.clear()
    page.run()
    assert not told, "nobody has pressed a key"
    page.session_state["press"] = True
    assert text(page.run()) == "1 1"
    assert set(told) == {("layer", "1"), ("head", "1")}


def test_a_link_elsewhere_is_followed_though_the_browser_has_not_answered_yet(runs_root: Path):
    write_synthetic_run(runs_root, method="keepkv", layers=3, heads=2)
    page = opened(going_page, layer="0", head="0")
    page.session_state["press"] = True
    page.run()
    page.query_params["layer"], page.query_params["head"] = "2", "0"
    assert text(page.run()) == "2 0"
