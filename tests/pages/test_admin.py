"""The page of the administrator: jobs in their order with owners, cancel, people, and room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.server.current_user import current_person
from kvlab import jobs
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import admin_overview, queue_db, worker_slots
from kvlab.requests.compare import CompareRequest
from kvlab.server.settings import VARIABLE
from kvlab.server.users import ALONE, Role, User, set_current_user
from tests.synthetic.runs import write_synthetic_run

ASKED = CompareRequest(prompt="x", choices=(MethodChoice(method="h2o"),), title="")


@pytest.fixture(autouse=True)
def whoever_asks() -> Iterator[None]:
    yield
    set_current_user(current_person)


def submit(root: Path, owner: str, title: str) -> str:
    set_current_user(lambda: User(owner, Role.RUN))
    try:
        return jobs.submit(root, ASKED.model_copy(update={"title": title}), "tab")
    finally:
        set_current_user(current_person)


def test_jobs_stand_in_their_order_with_owners_and_can_be_cancelled(runs_root: Path, open_page: Callable):
    first, _ = submit(runs_root, "ann", "A one"), submit(runs_root, "ann", "A two")
    other = submit(runs_root, "ben", "B one")
    with queue_db.database(runs_root) as connection:
        worker_slots.take_slot(connection, os.getpid())
        assert queue_db.claim(connection, os.getpid(), worker_slots.host_id())["job_id"] == first
    write_synthetic_run(runs_root, comparison_id=first, prompt_tokens=16, steps=2)
    page = open_page("admin")
    assert not page.exception
    words = [element.value for element in (*page.text, *page.caption)]
    order = [word for word in words if word in ("ann", "ben")]
    assert order == ["ann", "ben", "ann"], "the one that runs, then in turn"
    assert any(word.startswith("worker 1") for word in words)
    people = page.dataframe[0].value.set_index("user")
    assert list(people.loc["ann", ["running", "queued"]]) == [1, 1]
    assert people.loc["ann", "disk"] != "0 bytes" and people.loc["ben", "disk"] == "0 bytes"
    page.button(key=f"cancel-{other}").click().run()
    assert jobs.status(runs_root, other).state == "cancelled"
    assert not page.exception


def test_only_an_administrator_sees_it(runs_root: Path):
    set_current_user(lambda: User("ann", Role.RUN))
    with pytest.raises(UserError, match="You may not administer the queue"):
        admin_overview.overview(runs_root)
    with pytest.raises(UserError, match="You may not administer the queue"):
        admin_overview.stop_worker(runs_root, 1)
    set_current_user(lambda: ALONE)
    with pytest.raises(UserError, match="Worker 1 does not run on this machine"):
        admin_overview.stop_worker(runs_root, 1)


def test_the_bar_warns_before_the_folder_is_full(synthetic_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvlab.jobs.disk_usage.SECONDS_KNOWN", 0.0)
    size = admin_overview.folder_usage(synthetic_runs, measured=True).used
    file = tmp_path / "lab.toml"
    file.write_text(f'[people]\nway = "proxy"\n[disk]\nlimit = {int(size * 1.05)}\n')
    monkeypatch.setenv(VARIABLE, str(file))
    page = AppTest.from_function(bar).run()
    assert not page.exception and "delete or thin soon" in page.warning[0].value


def bar() -> None:
    from app.server.disk_warning import disk_warning

    disk_warning()


def test_old_recordings_are_thinned_with_two_clicks_and_their_pages_say_so(synthetic_runs: Path, open_page: Callable):
    page = open_page("admin")
    page.number_input(key="thin_days").set_value(0).run()
    page.button(key="thin").click().run()
    assert not page.exception and any("freed" in element.value for element in page.success)
    assert not list(synthetic_runs.glob("*/arrays"))
    for name in ("similarity", "heads", "timeline"):
        shown = open_page(name, comparison="newer")
        assert not shown.exception, name
        assert any("to free space" in element.value for element in (*shown.info, *shown.warning)), name
