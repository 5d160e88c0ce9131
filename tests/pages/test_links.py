"""Whatever a reader sets on a page is in its address: the address opened elsewhere shows the same."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.papers.registry import PAPERS, of_paper
from kvlab.trace.stories import Story, View, save_story
from tests.pages.conftest import PAGES, ROOT, RUN

Open = Callable[..., AppTest]
KINDS = (
    "selectbox", "multiselect", "slider", "number_input", "text_input", "text_area", "toggle", "checkbox",
    "button_group",
)  # fmt: skip
# What holds a value in Streamlit, by the name of its function.
FUNCTIONS = {
    "selectbox", "multiselect", "slider", "select_slider", "number_input", "text_input", "text_area", "toggle",
    "checkbox", "radio", "pills", "segmented_control", "tabs", "date_input", "time_input", "color_picker", "feedback",
    "pagination", "file_uploader", "data_editor", "chat_input", "camera_input",
}  # fmt: skip
# Keys, as written in the source, of widgets whose page puts their value into the address itself.
BY_HAND = {
    '"pasted"', "key", "CELL", "PLACE", "SLOT", "PICKED", "PAPER", '"lineage-slot"', 'f"pick_{name}"',
    'f"{PROMPT}-{comparison_id}"', '"model_here"', '"runs_text"', '"runs_sort"', '"runs_turned"', 'f"runs_{name}"',
    'turn_key("role", number)', 'turn_key("text", number)', '"runs_since"', '"runs_until"', '"runs_starred"',
    '"runs_archived"', '"runs_columns"', "KEY",
}  # fmt: skip
# A file is not in an address; the others are saved in the folder of runs.
NOT_LINKED = {
    '"live-pasted"',
    '"live-question"',
    '"live-upload"',
    "f'{key}-method'",  # a change of a live session, until it is applied
    "f'{key}-settings'",
    "f'{key}-budget'",
    "f'{key}-text'",
    "f'{key}-name'",
    "f'spans-text-{run.record.run_id}-{hash(tuple(spans))}'",  # until it is applied, which puts it into the address
    '"upload"',
    "f'upload-answers-{key}'",
    '"eval_upload"',
    '"story-file"',
    '"story-name"',
    '"story-caption"',
    "f'caption-{story.name}-{at}-{view.caption}'",
    "f'title-{story.name}-{at}-{view.slide.title}'",
    "f'story-private-{name}'",
    '"prompt-save-name"',
    '"prompt-save-replace"',
    "f'prompt-name-{name}'",
    '"runs-file"',
    '"runs-model"',
    '"runs_view_name"',
    '"runs-add-tags"',
    '"runs-remove-tags"',
    "f'runs-name-{first['id']}'",
    "f'runs-note-{first['id']}'",
    "f'answer-{record.comparison_id}'",
    '"thin_days"',
}
SAVED = ("story-name", "story-caption", "story-private-", "caption-", "title-", "answer-", "runs", "prompt-", "turn-")
# Widgets that decide which others are there: checked where the address sets them.
VARIANTS: dict[str, tuple[dict[str, str], ...]] = {
    "new_run": (
        {},
        {"source": "Chat", "turns": '[["user", "some words"]]'},
        {"source": "Paste", "text": "some words"},
        {"source": "Paste", "text": "more words", "plant": "true"},
        {"methods": "KeepKV", "settings": "true"},
        {"methods": "KeepKV", "settings_of_all": "paper"},
        {"methods": "KeepKV", "keepkv.preset.default": "paper"},
        {"ask": "Many prompts", "tasks": "needle"},
        {"ask": "A guarantee"},
        {"ask": "Timing", "methods": "KeepKV", "settings_of_all": "paper"},
    ),
    "similarity": ({"sets": "threshold"},),
    "merges": ({}, {"scope": "one head"}),
    "sag": ({}, {"scope": "all heads"}),
    "autopsy": ({"words": "the"},),
}
STEERING = {
    "source", "plant", "plant_repeats", "level", "sets", "scope", "words", "methods", "settings_of_all", "tasks", "ask",
}  # fmt: skip


def steers(key: str) -> bool:
    """Whether a widget decides which others are there: a preset's fields are others than the default's."""
    return key in STEERING or ".preset." in key


def cases() -> Iterator[Any]:
    for name in PAGES:
        for query in VARIANTS.get(name, ({},)):
            yield pytest.param(name, query, id="-".join([name, *query]))
    seen = set()
    for paper in PAPERS:
        for exhibit in of_paper(paper):
            asked = (exhibit.controls, tuple(entry.name for entry in exhibit.entries))
            if any(asked) and asked not in seen:
                seen.add(asked)
                yield pytest.param("papers", {"paper": paper, "exhibit": exhibit.slug}, id=f"{paper}-{exhibit.slug}")


def widgets(page: AppTest) -> dict[str, Any]:
    """Everything on the page that holds a value, by key."""
    assert not page.exception
    found = [widget for kind in KINDS for widget in page.get(kind)]
    assert all(widget.key for widget in found), "a widget without a key cannot be linked to"
    return {widget.key: widget for widget in found if not widget.key.startswith(SAVED)}


def shown(widget: Any) -> str | list[str]:
    """The widget's value as an address writes it."""
    if widget.type == "selectbox":
        return "" if widget.index is None else widget.options[widget.index]
    if widget.type in ("multiselect", "button_group"):
        labels = [widget.options[index] for index in widget.indices]
        return labels if widget.type == "multiselect" else labels[0]
    if widget.type in ("slider", "number_input") and widget.value is not None:
        return as_number(widget.value)
    return str(widget.value).lower() if widget.type in ("toggle", "checkbox") else str(widget.value)


def another(widget: Any) -> str | list[str]:
    """A value that the widget could have and has not."""
    if widget.type in ("selectbox", "button_group"):
        return next((option for option in widget.options if option != shown(widget)), shown(widget))
    if widget.type == "multiselect":
        return [option for option in widget.options if option not in shown(widget)] or list(widget.options[:-1])
    if widget.type in ("toggle", "checkbox"):
        return str(not widget.value).lower()
    if widget.type in ("slider", "number_input"):
        return as_number(another_number(widget))
    return "0.3" if widget.key == "budgets" else "[1]" if widget.key.endswith("weights") else "the"


def as_number(value: float) -> str:
    return f"{value:.15g}"


def another_number(widget: Any) -> float:
    low = 0 if widget.min is None else widget.min
    if widget.value != low:
        return low
    return low + widget.step if widget.step else widget.max


@pytest.mark.parametrize(("name", "query"), cases())
def test_every_widget_follows_the_address(
    shared_runs: Path, open_page: Open, look: Open, name: str, query: dict[str, str]
):
    stories(shared_runs)
    first = widgets(open_page(name, run=RUN, **query) if query or name == "story" else look(name))
    asked = {key: value for key, value in query.items() if key in first and steers(key)}
    assert {key: shown(first[key]) for key in asked} == {
        key: [value] if first[key].type == "multiselect" else value for key, value in asked.items()
    }
    bound = {key: widget for key, widget in first.items() if widget.proto.query_param_key}
    wanted = {key: another(widget) for key, widget in bound.items() if not steers(key)}
    found = widgets(open_page(name, run=RUN, **(query | wanted)))
    assert {key: shown(found[key]) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "query", "key"),
    [
        ("timeline", {}, "pick_run"),
        ("timeline", {}, "pick_comparison"),
        ("timeline", {}, "pick_layer"),
        ("timeline", {}, "pick_head"),
        ("similarity", {}, "pick_step"),
        ("timeline", {"step": "9", "tab": "What flowed into a slot"}, "timeline-slot"),
        ("lineage", {}, "lineage-slot"),
        ("two_runs", {}, "pick_b"),
        ("two_runs", {"b": "newer-h2o-25pc-0"}, "pick_b"),
        ("autopsy", {"words": "the"}, "autopsy-place"),
    ],
)
def test_a_choice_the_page_links_itself_is_in_the_address(
    shared_runs: Path, open_page: Open, name: str, query: dict[str, str], key: str
):
    page = open_page(name, run=RUN, **query)
    widget = page.selectbox(key=key)
    before = shown(widget)
    page = widget.select_index((widget.index + 1) % len(widget.options)).run()
    assert shown(widgets(page)[key]) != before
    again = widgets(open_page(name, **page.query_params))
    assert {name: shown(widget) for name, widget in again.items()} == {
        name: shown(widget) for name, widget in widgets(page).items()
    }


def test_the_chosen_exhibit_is_in_the_address(shared_runs: Path, open_page: Open):
    page = open_page("papers", paper="keepkv", run=RUN)
    page = page.selectbox(key="pick_exhibit").set_value("tab-2").run()
    assert page.query_params["exhibit"] in ("tab-2", ["tab-2"])
    assert shown(widgets(open_page("papers", **page.query_params))["pick_exhibit"]).startswith("Tab 2 · ")


@pytest.mark.parametrize("text", ["Private words & <c>", "Private words " + "x" * 20_000])
def test_a_pasted_prompt_is_opened_by_its_link_and_no_word_of_it_is_in_the_address(
    runs_root: Path, open_page: Open, text: str
):
    page = open_page("new_run", source="Paste")
    page = page.text_area(key="pasted").input(text).run()
    page = page.text_input(key="pasted_question").input("Which secret?").run()
    address = str(page.query_params)
    assert "Private" not in address and "secret" not in address and len(address) < 2000
    again = open_page("new_run", **page.query_params)
    assert again.text_area(key="pasted").value == text
    assert again.text_input(key="pasted_question").value == "Which secret?"
    emptied = again.text_area(key="pasted").input("").run()
    assert "draft" not in emptied.query_params


def test_a_link_of_before_is_opened_and_its_text_leaves_the_address(runs_root: Path, open_page: Open):
    page = open_page("new_run", source="Paste", text="a b & <c>")
    assert page.text_area(key="pasted").value == "a b & <c>"
    assert "text" not in page.query_params
    assert open_page("new_run", source="Paste", draft=page.query_params["draft"]).text_area(key="pasted").value


@pytest.mark.parametrize("draft", ["0123456789abcdef", "../../x", "", "é"])
def test_a_link_whose_draft_is_gone_says_so(runs_root: Path, open_page: Open, draft: str):
    page = open_page("new_run", source="Paste", draft=draft)
    assert not page.exception and page.text_area(key="pasted").value == ""
    assert bool(draft) == any("text of this link is not in this folder" in box.value for box in page.warning)


def test_the_tab_is_in_the_address(shared_runs: Path, open_page: Open):
    for label in ("Slots at this step", "Events of this step", "What flowed into a slot"):
        page = open_page("timeline", run=RUN, tab=label)
        assert not page.exception
        assert page.session_state["tab"] == label


def test_every_widget_in_the_source_is_bound_or_named_here():
    for file in sorted((ROOT / "app").rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)):
            if not (isinstance(call.func, ast.Attribute) and call.func.attr in FUNCTIONS):
                continue
            # `permission.disabled` holds the options of a widget that is disabled for some; `in_url` binds to the URL.
            spread = [keyword.value for keyword in call.keywords if keyword.arg is None]
            inner = [more for one in spread if isinstance(one, ast.Call) for more in one.keywords]
            given = {one.arg: ast.unparse(one.value).replace("'", '"') for one in [*call.keywords, *inner]}
            known = BY_HAND | {name.replace("'", '"') for name in NOT_LINKED}
            where = f"{file.name}:{call.lineno}"
            nodes = [node for keyword in call.keywords for node in ast.walk(keyword.value)]
            is_bound = any(isinstance(node, ast.Call) and ast.unparse(node.func).endswith("in_url") for node in nodes)
            assert is_bound or given.get("key") in known, where


def stories(root: Path) -> None:
    save_story(root, Story(name="One", views=(View(page="sag", caption="a"),)))
    save_story(root, Story(name="Two", views=(View(page="memory", caption="b"),)))
