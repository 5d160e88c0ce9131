"""The pages of views open for every kind of run, follow the address, and say what is missing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.figures.export_menu import MOST_SLIDES
from app.navigation.place import next_head
from kvlab import jobs
from kvlab.core.errors import UserError
from kvlab.jobs.work import counterfactual
from kvlab.report.deck import content
from kvlab.trace import open_run
from kvlab.trace.record import read_record, write_record
from kvlab.trace.stories import Story, View, load_story, save_story
from kvlab.views.frames.autopsy import FATES
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
PAGES = ("sag", "lineage", "regret", "wall", "autopsy", "memory", "serving", "heads")


def texts(page: AppTest) -> str:
    shown = [*page.title, *page.markdown, *page.caption, *page.info, *page.warning, *page.error]
    return "\n".join(str(element.value) for element in shown)


def charts(page: AppTest) -> list[dict]:
    return [json.loads(element.proto.spec) for element in page.get("plotly_chart")]


@pytest.fixture(scope="module")
def shared_folder(made_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of this file, to which it adds runs."""
    return shutil.copytree(made_runs, tmp_path_factory.mktemp("shared") / "runs")


@pytest.mark.parametrize("method", ["full", "h2o", "keepkv", "pool"])
@pytest.mark.parametrize("name", PAGES)
def test_every_view_opens_on_every_kind_of_run(shared_runs: Path, open_page: Open, name: str, method: str):
    run = f"newer-{method}-{'100pc' if method == 'full' else '25pc'}-7"
    if not (shared_runs / run).exists():
        assert write_synthetic_run(shared_runs, method=method, comparison_id="newer", seed=7).name == run
    page = open_page(name, run=run, layer="1", head="1", words="the")
    assert not page.exception
    assert page.title[0].value
    assert len(charts(page)) >= 1 or (name == "lineage" and "merged nothing" in texts(page))


@pytest.mark.parametrize("level", ["light", "off"])
@pytest.mark.parametrize("name", PAGES)
def test_a_run_that_recorded_less_says_how_to_record_it(runs_root: Path, open_page: Open, name: str, level: str):
    for method in ("full", "keepkv"):
        path = write_synthetic_run(runs_root, method=method, level=level)
    page = open_page(name, run=path.name)
    assert not page.exception
    assert name in ("memory",) or "kvlab compare --level full" in texts(page)


LOST = ("cut off", "gone")
LOST_FILE = r"cut off or damaged|is missing"
TELLING = {"similarity": LOST_FILE, "wall": LOST_FILE, "heads": "missing or damaged", "sag": "rows are missing"}
# A page that tells of it sees both, the others one, by turns.
OF_LOST = [
    (lost, name)
    for at, lost in enumerate(LOST)
    for place, name in enumerate([*PAGES, "timeline", "similarity", "merges", "compare"])
    if name in TELLING or place % 2 == at
]


@pytest.fixture(scope="module")
def without_arrays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last of two runs whose arrays were lost; the pages only look."""
    root = tmp_path_factory.mktemp("lost")
    for method in ("full", "keepkv"):
        path = write_synthetic_run(root, method=method, comparison_id="lost")
    for file in root.glob("*/arrays/*.safetensors"):
        if request.param == "gone":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:100])
    return path


@pytest.mark.parametrize(("without_arrays", "name"), OF_LOST, indirect=["without_arrays"])
def test_lost_arrays_are_told_in_a_sentence(
    without_arrays: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("KVLAB_RUNS", str(without_arrays.parent))
    page = open_page(name, run=without_arrays.name, layer="1", head="1", words="the")
    assert not page.exception
    assert re.search(TELLING[name], texts(page)) if name in TELLING else charts(page)


@pytest.mark.parametrize("name", [*PAGES, "story"])
def test_without_runs_it_says_so(runs_root: Path, open_page: Open, name: str):
    page = open_page(name)
    assert not page.exception
    assert "There are no runs yet" in texts(page) or "There is no story yet" in texts(page)


def test_the_health_of_every_run_compared_is_on_the_memory_page(synthetic_runs: Path, open_page: Open):
    page = open_page("memory", run="newer-keepkv-25pc-0")
    assert "Health of the cache" in [heading.value for heading in page.header]
    assert "made a key or value longer than all of its parts" in texts(page)
    drawn = any("length over the longest part" in json.dumps(chart) for chart in charts(page))
    assert drawn or "lines are equal, so they are not drawn" in texts(page)


def test_what_a_run_says_of_itself_stands_under_the_comparison(synthetic_runs: Path, open_page: Open):
    path = synthetic_runs / "newer-h2o-25pc-0"
    write_record(path, read_record(path).model_copy(update={"notes": ("A local window, no more.",)}))
    page = open_page("compare", comparison="newer")
    assert not page.exception
    assert any("A local window, no more." in str(caption.value).replace("\\", "") for caption in page.caption)


def test_a_cancelled_run_shows_what_it_has(runs_root: Path, open_page: Open):
    for status in ("complete", "cancelled"):
        path = write_synthetic_run(runs_root, status=status, seed=len(status))
    for name in PAGES:
        page = open_page(name, run=path.name)
        assert not page.exception, name
        assert "was cancelled" in texts(page), name


def test_charts_along_the_text_say_where_their_tokens_are(shared_runs: Path, open_page: Open):
    for name in ("sag", "regret", "memory"):
        first = next(chart for chart in charts(open_page(name, run="newer-keepkv-25pc-0")) if "meta" in chart["layout"])
        assert first["layout"]["meta"]["tokens"] == {"axis": "x", "offset": 63}, name


def test_the_bound_of_all_heads_is_asked_for_in_the_address(shared_runs: Path, open_page: Open):
    page = open_page("sag", run="newer-keepkv-25pc-0", scope="all heads", measure="Prediction error")
    assert not page.exception
    assert len(charts(page)) == 2
    assert "condition of KeepKV's theorem is met in" in texts(page)
    assert "Medians over heads" in texts(page)


def test_the_worst_head_is_one_click_away(synthetic_runs: Path, open_page: Open):
    page = open_page("regret", run="newer-h2o-25pc-0", step="4")
    steps = open_run(synthetic_runs / "newer-h2o-25pc-0").steps.query("step == 4")
    worst = steps.loc[steps["regret"].idxmax()]
    if buttons := [button for button in page.button if button.key == "worst-head"]:
        page = buttons[0].click().run()
    assert not page.exception
    assert (page.selectbox(key="pick_layer").value, page.selectbox(key="pick_head").value) == (
        worst["layer"],
        worst["head"],
    )
    assert "misses the most at step 4" in texts(page)


def test_two_runs_are_those_of_the_address(shared_runs: Path, open_page: Open):
    page = open_page("wall", run="newer-h2o-25pc-0", b="newer-full-100pc-0", step="3", panes="text,kl")
    assert not page.exception
    assert [page.selectbox(key=f"pick_{key}").value for key in ("run", "b")] == [
        "newer-h2o-25pc-0",
        "newer-full-100pc-0",
    ]
    told = texts(page).replace("\\", "").replace("\u00a0", " ")
    assert "After step 3, " in told and "of the text that A or B holds is held by both" in told
    assert "A and B diverge" in [metric.label for metric in page.metric]


def test_words_that_are_not_there_get_one_sentence_and_a_span_wins(shared_runs: Path, open_page: Open):
    page = open_page("autopsy", run="newer-h2o-25pc-0", words="zebra")
    assert not page.exception
    assert "The text has no “zebra”" in texts(page)
    page = open_page("autopsy", run="newer-h2o-25pc-0", words="zebra", span="5-7")
    assert not page.exception
    assert page.dataframe[0].value["token"].tolist() == [5, 6, 7]


def test_a_link_of_when_kept_was_called_own_slot_still_opens(shared_runs: Path, open_page: Open):
    page = open_page("autopsy", run="newer-h2o-25pc-0", span="5-7", fate="own slot")
    assert not page.exception
    assert page.session_state["fate"] in FATES
    assert "of the chosen text is still held, at the end of the run" in texts(page)


def test_keeping_tokens_queues_both_runs(synthetic_runs: Path, open_page: Open):
    page = open_page("autopsy", run="newer-h2o-25pc-0", span="5-7")
    page = page.button(key="put-back").click().run()
    assert not page.exception
    (job,) = jobs.list_jobs(synthetic_runs)
    asked = jobs.request_of(synthetic_runs, job.job_id)
    assert [choice.force_keep for choice in asked.choices] == [(), (5, 6, 7)]
    assert asked.prompt == open_run(synthetic_runs / "newer-h2o-25pc-0").record.prompt


def test_what_cannot_be_kept_is_one_sentence(synthetic_runs: Path):
    record = open_run(synthetic_runs / "newer-h2o-25pc-0").record
    with pytest.raises(UserError, match="Choose tokens of the prompt, 0 to 63"):
        counterfactual(record, 60, 64)
    with pytest.raises(UserError, match="20 tokens do not fit into a budget of 16 slots"):
        counterfactual(record, 0, 19)


def test_the_next_head_goes_through_all_layers_and_round():
    place, seen = (0, 0), []
    for _ in range(6):
        seen.append(place)
        place = next_head(*place, 1, [0, 2], 3)
    assert seen == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)] and place == (0, 0)
    assert next_head(0, 0, -1, [0, 2], 3) == (2, 2)


def test_a_threshold_clusters_anew(shared_runs: Path, open_page: Open):
    found = []
    for threshold in ("0.2", "0.95"):
        page = open_page("similarity", run="newer-keepkv-25pc-0", sets="threshold", threshold=threshold)
        assert not page.exception
        found.append(next(line.value for line in page.caption if "sets of neighbours" in line.value))
    slots = [int(line.split("leave ")[1].split(" ")[0]) for line in found]
    assert slots[0] < slots[1] <= 80


def test_a_view_is_added_to_a_story_and_told(synthetic_runs: Path, open_page: Open):
    for name, caption in (("sag", "Look **here**."), ("memory", "And there.")):
        page = open_page(name, run="newer-keepkv-25pc-0", layer="1")
        page.text_input(key="story-name").set_value("Group meeting")
        page.text_area(key="story-caption").set_value(caption)
        page = page.button(key="story-save").click().run()
        assert not page.exception
    saved = json.loads((synthetic_runs / "stories" / "group-meeting.json").read_text())
    pages = [view["page"] for view in saved["views"]]
    assert list(dict.fromkeys(pages)) == ["sag", "memory"] and 2 < len(pages) <= 2 * MOST_SLIDES
    assert saved["views"][0]["query"]["run"] == "newer-keepkv-25pc-0"
    story = load_story(synthetic_runs, "Group meeting")
    assert all(view.slide is not None and content(view) is not None for view in story.views)
    assert all("keepkv 25 %" in view.title.split(":")[0] for view in story.views), "each says whose it is"
    page = open_page("story")
    assert [area.value for area in page.text_area if area.value] == ["Look **here**.", "And there."]
    assert len(page.get("image")) == len(pages), "a picture each"
    last = pages.index("memory") - 1
    page.button(key=f"down-{last}").click().run()
    moved = json.loads((synthetic_runs / "stories" / "group-meeting.json").read_text())["views"]
    assert [view["page"] for view in moved][last] == "memory"


@pytest.mark.parametrize("name", ["timeline", "compare", "lineage", "similarity", "autopsy", "heads"])
def test_the_slides_of_a_whole_view_show_what_the_page_shows_first(synthetic_runs: Path, open_page: Open, name: str):
    page = open_page(name, run="newer-keepkv-25pc-0", comparison="newer", layer="1", head="1")
    shown = list(page.session_state["shown_on_page"].values())
    items = [item for item in shown if item.has_picture][:MOST_SLIDES]
    (said,) = [line.value for line in page.sidebar.caption if "Slides show" in line.value]
    assert items[0].title.split("*")[0][:20] in said.replace("\\", "").replace("\xa0", " ")
    page.text_input(key="story-name").set_value(f"All of {name}")
    page = page.button(key="story-save").click().run()
    assert not page.exception
    views = load_story(synthetic_runs, f"All of {name}").views
    assert len(views) == len(items) and len({view.title for view in views}) == len(views)
    for view, item in zip(views, items, strict=True):
        told = item.title.removesuffix(", this head").split("the chosen")[0]
        assert view.slide is not None and content(view) is not None and told[1:] in view.title


def test_a_page_that_shows_nothing_says_so_before_its_view_is_added(synthetic_runs: Path, open_page: Open):
    page = open_page("lineage", run="newer-full-100pc-0")
    assert any("nothing to put on a slide" in line.value for line in page.sidebar.caption)
    assert page.button(key="story-save").disabled


def test_a_link_into_a_story_that_is_not_here_says_so(synthetic_runs: Path, open_page: Open):
    save_story(synthetic_runs, Story(name="Short", views=(View(page="sag", caption="Look."),)))
    for name, place, sentence in (("Nowhere", "1", "does not exist here"), ("Short", "7", "choose one of 1 to 1")):
        page = open_page("sag", run="newer-keepkv-25pc-0", telling=name, place=place)
        assert not page.exception
        assert any(sentence in warning.value for warning in page.warning)
