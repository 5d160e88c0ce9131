"""What pages keep of what they drew: how much, for whom, how old it may be, and that nobody draws it twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.entries import papers
from app.papers import exhibit
from app.papers.exhibit import FigureCache
from kvlab.common.lab import ALONE, User, acting, set_current_user
from kvlab.papers.registry import find
from kvlab.papers.scorecard import draw_card
from kvlab.results.sources import Sources, SourceState
from kvlab.trace.reader import open_run
from tests.synthetic.runs import write_synthetic_run

FIRST, MORE = SourceState(("here",), frozenset("ab"), "1"), SourceState(("here",), frozenset("abc"), "2")
OTHERS = SourceState(("here",), frozenset("a"), "3")


def texts(most: int = 1000) -> FigureCache[str]:
    """Keeps texts by their letters; the empty one shows nothing."""
    return FigureCache(most, len, bool)


def wait_until(said: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not said() and time.monotonic() < until:
        time.sleep(0.005)
    assert said()


def test_the_last_used_values_are_kept_up_to_a_number_of_bytes():
    found = texts(100)
    for number in range(50):
        found.get(number, FIRST, lambda: "x" * 30)
        found.get("often", FIRST, lambda: "y" * 10)
        assert found.bytes <= 100
    drawn: list[int] = []
    for number in (49, 48, 0):
        found.get(number, FIRST, lambda: drawn.append(1) or "x" * 30)
    assert len(drawn) == 1
    assert found.get("large", FIRST, lambda: "z" * 500) == "z" * 500  # more than all that may be kept: alone
    found.get("small", FIRST, lambda: "s")
    assert found.bytes <= 100


def test_what_twenty_ask_for_at_once_is_drawn_once():
    found, drawn, all_there = texts(), [], threading.Barrier(20)

    def draw() -> str:
        drawn.append(threading.get_ident())
        time.sleep(0.05)
        return "drawn"

    def ask(_: int) -> str:
        all_there.wait()
        return found.get("card", FIRST, draw)

    with ThreadPoolExecutor(20) as readers:
        assert list(readers.map(ask, range(20))) == ["drawn"] * 20
    assert len(drawn) == 1


def test_after_more_was_recorded_the_older_one_is_shown_and_drawn_anew_behind_the_page(monkeypatch: pytest.MonkeyPatch):
    found, may_go_on = texts(), threading.Event()
    found.get("card", FIRST, lambda: "old")

    def slowly() -> str:
        may_go_on.wait(5)
        return "new"

    assert found.get("card", MORE, slowly) == "old"  # and for a minute nothing is drawn anew
    assert not found._queued
    monkeypatch.setattr(exhibit, "MAX_AGE_SECONDS", 0.0)
    for _ in range(3):
        assert found.get("card", MORE, slowly) == "old"
    assert len(found._queued) == 1
    may_go_on.set()
    wait_until(lambda: found.get("card", MORE, slowly) == "new")


def test_a_fault_behind_the_page_is_left_to_the_page_that_asks_next(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exhibit, "MAX_AGE_SECONDS", 0.0)
    found = texts()
    found.get("card", FIRST, lambda: "old")
    assert found.get("card", MORE, lambda: str(1 / 0)) == "old"
    wait_until(lambda: not found._queued)
    with pytest.raises(ZeroDivisionError):
        found.get("card", MORE, lambda: str(1 / 0))
    assert found.get("card", MORE, lambda: "mended") == "mended"


@pytest.mark.parametrize(("before", "seen"), [("old", OTHERS), ("", MORE)], ids=["gone or hidden since", "empty"])
def test_where_something_is_gone_or_nothing_was_shown_one_waits_for_the_new_one(before: str, seen: SourceState):
    found = texts()
    found.get("card", FIRST, lambda: before)
    assert found.get("card", seen, lambda: "new") == "new"


def test_a_page_that_looked_before_takes_what_was_drawn_since():
    found = texts()
    found.get("card", MORE, lambda: "newer")
    assert found.get("card", FIRST, lambda: "older") == "newer"
    assert found.get("card", MORE, lambda: "again") == "newer"


def test_what_is_drawn_behind_the_page_is_drawn_for_the_person_who_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exhibit, "MAX_AGE_SECONDS", 0.0)
    found, ben = texts(), User("ben")
    found.get("card", FIRST, lambda: "old")
    try:
        set_current_user(lambda: ben if threading.current_thread() is threading.main_thread() else User(""))
        found.get("card", MORE, lambda: acting().name)
        wait_until(lambda: not found._queued)
        assert found.get("card", MORE, lambda: "") == "ben"
    finally:
        set_current_user(lambda: ALONE)


@pytest.fixture
def lab(tmp_path: Path):
    """Two open runs, and one of ben's that is private."""
    small = {"layers": 1, "prompt_tokens": 12, "steps": 2}
    full = write_synthetic_run(tmp_path, method="full", comparison_id="open", **small)
    write_synthetic_run(tmp_path, method="h2o", comparison_id="open", **small)
    hidden = write_synthetic_run(tmp_path, method="h2o", comparison_id="hidden", **small, owner="ben", private=True)
    yield tmp_path, full, hidden
    set_current_user(lambda: ALONE)


def test_a_card_of_one_person_is_never_shown_to_another(lab: tuple[Path, Path, Path]):
    """Who may see less has another place; what one saw before it was hidden is not shown to them again."""
    root, full, hidden = lab

    def seen_by(name: str) -> SourceState:
        set_current_user(lambda: User(name))
        run = open_run(full)
        return Sources(root, run, [run]).state_of_runs

    bens, carls = seen_by("ben"), seen_by("carl")
    assert hidden.name in bens.names and hidden.name not in carls.names
    assert bens.place != carls.place
    found = texts()
    assert found.get("card", bens, lambda: "with ben's own") == "with ben's own"
    assert found.get("card", carls, lambda: "without") == "without"
    saw_it_once = SourceState(carls.place, bens.names, bens.stamp, carls.at - 1)
    again = texts()
    again.get("card", saw_it_once, lambda: "with ben's own")
    assert again.get("card", carls, lambda: "without") == "without"


def test_a_card_of_the_atlas_takes_some_kilobytes(tmp_path: Path):
    """So that what may be kept is some thirty atlases of seventy cards."""
    for method in ("full", "keepkv"):
        write_synthetic_run(tmp_path, method=method, comparison_id="all")
    runs = [open_run(folder) for folder in sorted(tmp_path.glob("*keepkv*"))]
    card = draw_card(find("keepkv", "fig-1"), Sources(tmp_path, runs[0], runs), "light")
    assert card.origin
    assert len(repr(card)) < papers.CACHE_BYTES / (30 * 70)
