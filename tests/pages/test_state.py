"""What the address names is what a page shows; what it names wrongly is one sentence, never a trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from app.session.open_runs import is_as_opened, open_cached
from kvlab.trace import open_run
from kvlab.trace.user_labels import save_answer
from tests.pages.small import opened, query, text
from tests.synthetic.runs import write_synthetic_run

PLACES = {
    "layer": "a recorded layer of this run: choose one of 0 to 1",
    "head": "a KV head of this run: choose one of 0 to 1",
    "step": "a step of this run: choose one of 0 to 16",
}


def one_run_page() -> None:
    import streamlit as st

    from app.navigation.place import pick_head, pick_layer, pick_step
    from app.navigation.selection import current_run

    run = current_run()
    if run is not None:
        st.text(f"{run.record.run_id} {pick_layer(run)} {pick_head(run)} {pick_step(run)}")


def comparison_page() -> None:
    import streamlit as st

    from app.navigation.selection import current_comparison

    st.text(" ".join(run.record.run_id for run in current_comparison()))


def merging_page() -> None:
    import streamlit as st

    from app.navigation.selection import current_run

    run = current_run("merging")
    st.text(run.record.run_id if run else "")


def wrong_page() -> None:
    import streamlit as st

    from app.navigation.selection import current_run

    run = current_run("wrong")
    st.text(run.record.run_id if run else "")


def test_without_an_address_the_run_with_most_to_show_is_shown_and_named_in_the_url(synthetic_runs: Path):
    page = opened(one_run_page)
    assert text(page).startswith("newer-keepkv-25pc-0 ")
    assert query(page) == {"comparison": "newer", "run": "newer-keepkv-25pc-0"}


def test_the_address_names_run_layer_head_and_step(synthetic_runs: Path):
    page = opened(one_run_page, run="older-keepkv-25pc-0", layer="1", head="1", step="7")
    assert text(page) == "older-keepkv-25pc-0 1 1 7"
    assert query(page) == {"comparison": "older", "run": "older-keepkv-25pc-0", "layer": "1", "head": "1", "step": "7"}


def test_a_choice_in_the_bar_goes_to_the_url(synthetic_runs: Path):
    page = opened(one_run_page, run="older-keepkv-25pc-0")
    page = page.selectbox(key="pick_run").set_value("older-full-100pc-0").run()
    assert text(page).startswith("older-full-100pc-0")
    page = page.selectbox(key="pick_comparison").set_value("newer").run()
    assert text(page).startswith("newer-")
    assert query(page)["run"].startswith("newer-")


@pytest.mark.parametrize("name", ["run", "comparison"])
def test_a_run_or_comparison_that_is_not_there_is_one_sentence(synthetic_runs: Path, name: str):
    page = opened(one_run_page, **{name: "nope"})
    assert text(page) == ""
    assert [error.value for error in page.error] == [
        f"There is no {name} `nope` in this folder of runs: choose another above."
    ]
    page = page.selectbox(key=f"pick_{name}").select_index(0).run()
    assert text(page)
    assert not page.error


@pytest.mark.parametrize("value", ["17", "-1", "abc"])
@pytest.mark.parametrize("name", PLACES)
def test_a_layer_head_or_step_that_is_not_there_is_one_sentence(synthetic_runs: Path, name: str, value: str):
    page = opened(one_run_page, run="older-h2o-25pc-0", **({"layer": "0", "step": "16"} | {name: value}))
    assert text(page) == "older-h2o-25pc-0 0 0 16"
    sentence = f"{name.capitalize()} `{value}` is not {PLACES[name]}."
    assert [warning.value for warning in page.warning] == [sentence]


def test_a_comparison_opens_its_runs_and_leaves_out_a_broken_one(synthetic_runs: Path):
    assert len(text(opened(comparison_page, comparison="older")).split()) == 3
    (synthetic_runs / "older-h2o-25pc-0" / "run.json").write_text("{")
    page = opened(comparison_page, comparison="older")
    assert text(page) == "older-full-100pc-0 older-keepkv-25pc-0"
    assert "cut off or damaged" in page.error[0].value


def test_a_failed_run_and_a_lost_part_are_said_and_the_rest_is_shown(runs_root: Path):
    path = write_synthetic_run(runs_root, status="failed")
    (path / "steps" / "part-00000.parquet").unlink()
    page = opened(one_run_page)
    assert text(page)
    said = [warning.value.replace("\\", "") for warning in page.warning]  # as Markdown shows it
    assert "failed:" in said[0] and "steps/part-00000.parquet is missing" in said[1]


def test_no_runs_is_an_invitation(runs_root: Path):
    page = opened(one_run_page)
    assert text(page) == ""
    assert page.info[0].value.startswith("There are no runs yet")


def telling(root: Path, run_id: str) -> tuple[int, int, int]:
    """By plain reading: the layer and head whose output errs most on average, and the step before the largest KL."""
    run = open_run(root / run_id)
    errors: dict[tuple[int, int], list[float]] = {}
    for row in run.steps.itertuples():
        if row.output_error == row.output_error:
            errors.setdefault((row.layer, row.head), []).append(row.output_error)
    worst = max(errors, key=lambda place: sum(errors[place]) / len(errors[place]))
    kl = run.tokens[run.tokens["phase"] == "forced"].sort_values("position")["kl"].tolist()
    return (*worst, max(range(len(kl)), key=kl.__getitem__))


def test_where_nobody_chose_the_place_tells_something_and_says_why(synthetic_runs: Path):
    page = opened(one_run_page, run="older-keepkv-25pc-0")
    layer, head, step = telling(synthetic_runs, "older-keepkv-25pc-0")
    assert text(page) == f"older-keepkv-25pc-0 {layer} {head} {step}"
    assert "this head has the largest output error" in page.selectbox(key="pick_layer").help
    assert "furthest from the full cache" in page.selectbox(key="pick_step").help
    page = opened(one_run_page, run="older-keepkv-25pc-0", layer="0", head="0", step="1")
    assert text(page) == "older-keepkv-25pc-0 0 0 1"
    assert page.selectbox(key="pick_layer").help == "" and "Opened" not in page.selectbox(key="pick_step").help


def test_what_was_chosen_stays_when_the_menu_drops_the_address(synthetic_runs: Path):
    page = opened(one_run_page, run="older-keepkv-25pc-0", layer="1", head="1", step="7")
    for name in list(page.query_params):
        del page.query_params[name]
    page = page.run()
    assert text(page) == "older-keepkv-25pc-0 1 1 7"
    assert query(page) == {"comparison": "older", "run": "older-keepkv-25pc-0", "layer": "1", "head": "1", "step": "7"}


def test_a_run_that_a_page_opened_by_itself_is_not_kept_as_a_choice(synthetic_runs: Path):
    page = opened(one_run_page)
    assert text(page).startswith("newer-keepkv-25pc-0")
    assert "it has most to show" in page.selectbox(key="pick_run").help
    assert "chosen_run" not in page.session_state
    page = page.run()
    assert "it has most to show" in page.selectbox(key="pick_run").help, "the address it wrote is no choice"
    page = page.selectbox(key="pick_run").set_value("newer-h2o-25pc-0").run()
    assert page.session_state["chosen_run"] == "newer-h2o-25pc-0"
    assert page.selectbox(key="pick_run").help == ""


def test_a_page_about_merging_opens_the_run_that_merges_and_the_autopsy_a_wrong_one(synthetic_runs: Path):
    merged = {
        name: int(open_run(synthetic_runs / f"newer-{name}-25pc-0").steps["merged"].sum()) for name in ("h2o", "keepkv")
    }
    assert merged["h2o"] == 0 < merged["keepkv"]
    page = opened(merging_page)
    assert text(page) == "newer-keepkv-25pc-0"
    assert f"it has most to show: {merged['keepkv']:,} merges" in page.selectbox(key="pick_run").help
    save_answer(synthetic_runs, "newer", open_run(synthetic_runs / "newer-full-100pc-0").record.prompt, "zebra")
    page = opened(wrong_page)
    assert "wrong answer" in page.selectbox(key="pick_run").help


def test_a_run_that_is_still_written_is_noticed_where_a_part_of_the_page_is_drawn_alone(runs_root: Path):
    path = write_synthetic_run(runs_root)
    run = open_cached(path)
    assert is_as_opened(run)
    parts = run.path / "parts.json"
    os.utime(parts, ns=(parts.stat().st_atime_ns, parts.stat().st_mtime_ns + 1_000_000))
    assert not is_as_opened(run)
    assert is_as_opened(open_cached(path))
    shutil.rmtree(path)
    assert not is_as_opened(run)
