"""The timeline opens for every kind of run, follows the URL, and says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import switch_to
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
FLOW = "What flowed into a slot"


def texts(page: AppTest) -> str:
    shown = [*page.title, *page.markdown, *page.caption, *page.info, *page.warning, *page.error]
    return "\n".join(str(element.value) for element in shown)


def charts(page: AppTest) -> list[str]:
    return [element.proto.spec for element in page.get("plotly_chart")]


@pytest.mark.parametrize("method", ["full", "h2o", "keepkv", "pool"])
def test_a_full_run_shows_slots_events_and_history(runs_root: Path, open_page: Open, method: str):
    path = write_synthetic_run(runs_root, method=method)
    page = open_page("timeline", run=path.name, step="3", layer="1", head="1")
    assert not page.exception
    assert "The number of slots derived from the events agrees with the cache's own count at all 17 steps." in texts(
        page
    )
    assert len(charts(page)) >= 2
    slots = page.dataframe[0].value
    assert slots["votes"].sum() <= 67
    assert list(slots.columns)[:4] == ["position", "text", "state", "votes"]


def test_the_chosen_token_opens_the_river_of_its_slot(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("timeline", run=path.name, step="16")
    slot = page.dataframe[0].value.sort_values("votes")["position"].iloc[-1]
    page = open_page("timeline", run=path.name, step="16", token=str(slot), tab=FLOW)
    assert not page.exception
    assert page.selectbox(key="timeline-slot").value == slot
    assert any("sankey" in spec for spec in charts(page))


def test_what_lies_behind_a_tab_is_made_when_it_is_opened(runs_root: Path, open_page: Open):
    """Tables of slots and of events differ in their columns, and a river in being a chart."""
    path = write_synthetic_run(runs_root, method="keepkv")
    firsts = {}
    for tab in ("Slots at this step", "Events of this step", FLOW):
        page = open_page("timeline", run=path.name, step="16", tab=tab)
        assert not page.exception
        rivers = sum("sankey" in spec for spec in charts(page))
        firsts[tab] = [table.value.columns[0] for table in page.dataframe], rivers
    assert list(firsts.values()) == [(["position"], 0), (["kind"], 0), ([], 1)]


def test_a_slot_chosen_in_the_list_goes_into_the_address(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("timeline", run=path.name, step="16", tab=FLOW)
    other = page.selectbox(key="timeline-slot").options[1].split(" ")[0]
    page.selectbox(key="timeline-slot").set_value(int(other)).run()
    assert not page.exception
    assert page.query_params["token"] == other


@pytest.mark.parametrize("level", ["light", "off"])
def test_a_run_without_events_says_how_to_get_them(runs_root: Path, open_page: Open, level: str):
    path = write_synthetic_run(runs_root, level=level)
    page = open_page("timeline", run=path.name)
    assert not page.exception
    assert f"recorded at level **{level}**" in texts(page)
    assert "kvlab compare --level full" in texts(page)


def test_a_cancelled_run_shows_what_it_has(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, status="cancelled")
    page = open_page("timeline", run=path.name)
    assert not page.exception
    assert "was cancelled" in texts(page)
    assert len(charts(page)) >= 2


def test_a_step_that_does_not_exist_gets_one_sentence(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root)
    for step in ("99", "-1", "x"):
        page = open_page("timeline", run=path.name, step=step)
        assert not page.exception
        assert f"Step `{step}` is not a step of this run: choose one of 0 to 16." in texts(page)


def test_one_layer_one_head_and_a_prompt_of_html(runs_root: Path, open_page: Open):
    prompt = '<script>alert(1)</script> <img src=x onerror="alert(2)"> **not bold** ' * 3
    path = write_synthetic_run(runs_root, layers=1, heads=1, steps=2, prompt=prompt)
    page = open_page("timeline", run=path.name, token="3")
    assert not page.exception
    assert all("<script" not in spec and "<img" not in spec for spec in charts(page))
    assert "<script" not in texts(page)


def test_without_runs_it_says_how_to_make_one(runs_root: Path, open_page: Open):
    page = open_page("timeline")
    assert not page.exception
    assert "There are no runs yet" in texts(page)


def test_of_many_slots_those_that_matter_are_listed(runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch):
    path = write_synthetic_run(runs_root, method="keepkv", prompt_tokens=200)
    every = open_page("timeline", run=path.name, step="16").dataframe[0].value
    monkeypatch.setattr("app.figures.tables.MOST_ROWS", 20)
    page = open_page("timeline", run=path.name, step="16")
    shown = page.dataframe[0].value
    assert f"The 20 of {len(every):,} slots that represent the most tokens" in texts(page)
    assert len(shown) == 20 and shown["position"].is_monotonic_increasing
    left = every[~every["position"].isin(shown["position"])]
    worst = (shown["votes"].min(), shown[shown["votes"] == shown["votes"].min()]["mass"].min())
    assert all((votes, mass) <= worst for votes, mass in zip(left["votes"], left["mass"], strict=True))


def test_the_prompts_decision_is_shown_for_the_token_in_the_address_and_played(synthetic_runs, open_page):
    run = next(path for path in synthetic_runs.glob("newer-h2o*"))
    page = open_page("timeline", run=run.name, token="20")
    text = "\n".join(str(element.value).replace("\\", "") for element in [*page.header, *page.caption])
    assert not page.exception
    assert "The prompt's decision" in text and "stayed" in text
    played = open_page("timeline", run=run.name, play="the prompt's decision", frame="3")
    assert not played.exception


def test_where_nothing_was_decided_it_says_so(synthetic_runs, open_page):
    run = next(path for path in synthetic_runs.glob("newer-full*"))
    page = open_page("timeline", run=run.name)
    assert not page.exception
    assert any("No decision about the prompt was recorded" in str(element.value) for element in page.info)


def test_lineage_and_autopsy_open_with_the_chosen_token(runs_root: Path, open_page: Open):
    path = write_synthetic_run(runs_root, method="keepkv")
    page = open_page("timeline", run=path.name, step="16")
    slots = page.dataframe[0].value
    slot = int(slots[slots["votes"] > 1].sort_values("votes")["position"].iloc[0])  # not the one with most votes
    page = open_page("timeline", run=path.name, step="16", token=str(slot))
    page = switch_to(page, "lineage").run()
    assert not page.exception
    assert page.selectbox(key="lineage-slot").value == slot
    page = switch_to(page, "autopsy").run()
    assert not page.exception
    assert page.dataframe[0].value["token"].tolist() == [slot]
