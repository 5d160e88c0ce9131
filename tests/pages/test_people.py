"""A shared server's pages: who is there, what they are shown, and that it holds whatever a browser sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.server.gate import current_person
from kvlab import jobs
from kvlab.common.binding import OPEN
from kvlab.common.lab import ALONE, VARIABLE, User, acting_for, set_current_user
from kvlab.core.choice import MethodChoice
from kvlab.requests.compare import CompareRequest
from kvlab.trace.catalogue import list_comparisons, list_runs
from tests.pages.conftest import switch_to
from tests.synthetic.runs import write_synthetic_run

ROOT = Path(__file__).resolve().parents[2]
PEOPLE = """
[people]
way = "proxy"
"""
OIDC = """
[people]
way = "oidc"
secrets = "secrets.toml"
"""
Visit = Callable[..., AppTest]


@pytest.fixture
def visit(runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    """Opens a page as the server would for this person."""
    set_current_user(current_person)  # as the server does when it starts; another test may have set somebody since
    file = tmp_path / "lab.toml"
    file.write_text(PEOPLE)
    monkeypatch.setenv(VARIABLE, str(file))
    small = {"layers": 1, "heads": 1, "steps": 2, "prompt_tokens": 8}
    write_synthetic_run(runs_root, comparison_id="open", owner="ben", title="an open one", **small)
    write_synthetic_run(runs_root, comparison_id="hidden", owner="ben", private=True, title="a hush", **small)

    def opened(name: str, person: str, user: dict[str, Any] | None = None, **query: str) -> AppTest:
        page = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=30)
        page.user = {"kvlab_name": person.replace(" ", "%20")} if person else {}
        page.user = page.user if user is None else user
        page.query_params.update(query)
        switch_to(page, name)
        return page.run()

    return opened


def words(page: AppTest) -> str:
    kinds = ("markdown", "caption", "error", "warning", "title", "text", "info")
    return " ".join(str(element.value) for kind in kinds for element in page.get(kind))


def test_who_has_not_signed_in_sees_no_page(visit: Visit) -> None:
    page = visit("runs", "")
    assert "no name came from the lab's proxy" in words(page) and "open one" not in words(page)
    assert not page.title and not page.button and not page.dataframe


def test_a_broken_lab_file_shows_nothing_but_that(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text("people = ")
    page = visit("runs", "anna")
    assert [box.value for box in page.error] and not page.dataframe and not page.exception


@pytest.mark.parametrize(("person", "rows"), [("anna", {"open"}), ("ben", {"open", "hidden"}), ("Ben", {"open"})])
def test_the_table_of_runs_shows_whose_they_are(visit: Visit, person: str, rows: set[str]) -> None:
    page = visit("runs", person)
    assert not page.exception
    table = page.dataframe[0].value
    assert len(table) == len(rows) and set(table["owner"]) == {"ben"}
    assert ("a hush" in set(table["title"])) == ("hidden" in rows)
    assert person in words(page)


@pytest.mark.parametrize("name", ["compare", "timeline"])
def test_a_link_to_a_private_comparison_shows_it_to_its_owner_alone(visit: Visit, runs_root: Path, name: str) -> None:
    with acting_for(ALONE):
        (run,) = (entry.run_id for entry in list_runs(runs_root, comparison_id="hidden"))
    for link in ({"comparison": "hidden"}, {"run": run}, {"comparison": "open", "run": run, "b": run}):
        page = visit(name, "carl", **link)
        assert "a hush" not in words(page) and not page.exception
    if name == "compare":
        assert "private" in words(visit(name, "ben", comparison="hidden"))


def test_the_job_of_another_is_not_told(visit: Visit, runs_root: Path) -> None:
    asked = CompareRequest(prompt="hush hush", choices=(MethodChoice(method="h2o"),), private=True)
    with acting_for(User("ben")):
        job_id = jobs.submit(runs_root, asked)
    assert "hush" in words(visit("new_run", "ben", job=job_id))
    page = visit("new_run", "carl", job=job_id)
    assert "There is no job" in words(page) and "hush" not in words(page)


def press_run(form: AppTest) -> None:
    form.button(key="run").click().run()


def queued(root: Path) -> list[tuple[jobs.JobStatus, CompareRequest]]:
    """All jobs, as a terminal of the server sees them."""
    with acting_for(ALONE):
        return [(job, jobs.request_of(root, job.job_id)) for job in jobs.list_jobs(root)]


def test_a_private_run_is_asked_for_by_a_switch_and_models_are_those_of_the_list(visit: Visit, runs_root: Path) -> None:
    form = visit("new_run", "ben", source="Paste", text="some words to read")
    assert "This server has mini" in words(form) and "hub name" not in words(form)
    next(one for one in form.toggle if one.label == "Private").set_value(True)
    press_run(form)
    ((job, request),) = queued(runs_root)
    assert (job.owner, request.private) == ("ben", True)


def test_alone_nobody_is_asked_and_a_server_open_to_everyone_says_so(
    open_page: Callable[..., AppTest], synthetic_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page("runs")
    assert "owner" not in page.dataframe[0].value and not page.warning and len(list_comparisons(synthetic_runs)) == 2
    monkeypatch.setenv(OPEN, "yes")
    assert "has no sign-in" in words(open_page("runs"))


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ({}, "Sign in"),
        ({"is_logged_in": False, "email": "anna@lab.example"}, "Sign in"),
        ({"is_logged_in": True, "email": "anna@lab.example"}, "anna@lab"),
        ({"is_logged_in": True, "sub": "anna@lab.example"}, "no 'email' came from the identity provider"),
        ({"is_logged_in": True, "kvlab_name": "anna@lab.example"}, "no 'email' came from the identity provider"),
    ],
)
def test_an_identity_provider_names_the_person(visit: Visit, tmp_path: Path, user: dict[str, Any], shown: str) -> None:
    (tmp_path / "lab.toml").write_text(OIDC)
    page = visit("runs", "", user)
    buttons = " ".join(button.label for button in page.button)
    assert shown in words(page) + buttons and not page.exception
    assert bool(page.dataframe) == (shown == "anna@lab")
    assert ("Sign out" in buttons) == bool(user.get("is_logged_in")), "also with an identity that has no name"
