"""Whoever may not use a button sees it dead, with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button

from app.base.widgets import OTHERS
from app.server.gate import current_person
from kvlab import jobs
from kvlab.common.lab import ALONE, VARIABLE, User, acting_for, set_current_user
from kvlab.core.choice import MethodChoice
from kvlab.jobs import queue_db
from kvlab.library.find import save_view
from kvlab.requests.compare import CompareRequest
from kvlab.trace.stories import Story, View, make_private, save_story
from tests.pages.conftest import switch_to
from tests.synthetic.runs import write_synthetic_run

ROOT = Path(__file__).resolve().parents[2]
# What a button that changes nothing is called: it leads elsewhere, or fills in a form.
HARMLESS = re.compile(
    r"Use .*|Edit a copy|Open|Side by side|Set up another .*|Walk through the pages|right ones|Add a turn"
    r"|Go to layer .*|Find .*|Compare the .*|Show these|As found in the prompt"
)
LAB = """
[people]
way = "proxy"
"""
Visit = Callable[..., AppTest]


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, a job that waits, one that failed, a story and a view; all are ben's."""
    root = tmp_path_factory.mktemp("lab") / "runs"
    small: dict[str, Any] = {"layers": 1, "heads": 1, "steps": 2, "prompt_tokens": 8, "owner": "ben"}
    for method in ("full", "keepkv"):
        write_synthetic_run(root, comparison_id="open", method=method, answer="x", **small)
    asked = CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),), title="a job")
    with acting_for(User("ben")):
        ids = [jobs.submit(root, asked) for _ in range(2)]
        with queue_db.database(root) as connection:
            queue_db.finish(connection, ids[1], "failed", "It failed.")
        save_view(root, "right ones", {"answers": "right"})
        save_story(root, Story(name="Talk", views=(View(page="compare"), View(page="sag"))))
        make_private(root, "Talk", False)
    (root / "ids").write_text(" ".join(ids))
    return root


@pytest.fixture
def visit(lab_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visit]:
    (tmp_path / "lab.toml").write_text(LAB)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "lab.toml"))
    monkeypatch.setenv("KVLAB_RUNS", str(lab_folder))

    def opened(name: str, person: str, **query: str) -> AppTest:
        page = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
        page.user = {"kvlab_name": person}
        page.query_params.update(query)
        switch_to(page, name)
        return page.run()

    set_current_user(current_person)
    yield opened
    set_current_user(current_person)


def name(button: Button) -> str:
    """What is written on a button, or its key if there is only an icon."""
    return re.sub(r":small\[.*\]", "", button.label).strip() or str(button.key)


def alive(page: AppTest) -> set[str]:
    """Buttons that could be pressed and are not known to change nothing."""
    return {name(one) for one in page.button if not one.disabled and not HARMLESS.fullmatch(name(one))}


def dead(page: AppTest) -> dict[str, str]:
    return {name(one): one.help for one in page.button if one.disabled}


@pytest.mark.parametrize(
    ("name", "query", "own", "others"),
    [
        ("new_run", {"job": "0"}, {"Cancel"}, set()),
        ("new_run", {"job": "1"}, {"Resume with 1 of 1"}, set()),
        ("story", {}, {"up-1", "down-0", "twice-0", "delete-0", "twice-1", "delete-1"}, set()),
        ("compare", {"comparison": "open"}, {"Score the runs"}, {"Add to story", "Add this view"}),
    ],
)
def test_a_person_changes_their_own_and_not_anothers(
    visit: Visit, lab_folder: Path, name: str, query: dict[str, str], own: set[str], others: set[str]
) -> None:
    if "job" in query:
        query = {"job": (lab_folder / "ids").read_text().split()[int(query["job"])]}
    for person, may in (("ben", True), ("carl", False)):
        page = visit(name, person, **query)
        assert not page.exception
        assert (own <= alive(page)) is may, (person, alive(page), dead(page))
        if not may:
            assert own <= dead(page).keys() and {dead(page)[one] for one in own} == {OTHERS}
            assert others <= alive(page), "what is their own stays alive"


def test_on_the_page_of_runs_the_chosen_rows_decide(visit: Visit, lab_folder: Path) -> None:
    def page() -> None:
        import pandas as pd

        from app.runs import actions

        row = {"kind": "comparison", "id": "open", "members": ("open",), "title": "t", "name": "", "note": ""}
        row |= {"tags": (), "starred": False, "archived": False, "owner": "ben"}
        actions(pd.DataFrame([row]))

    wanted = {"Delete", "Star", "Archive"}
    for person, reason in ((User("ben"), None), (ALONE, None), (User("carl"), OTHERS)):
        set_current_user(lambda person=person: person)
        shown = AppTest.from_function(page).run()
        assert not shown.exception
        assert wanted <= (alive(shown) if reason is None else dead(shown).keys())
        assert reason is None or {dead(shown)[one] for one in wanted} == {reason}
