"""Every figure, table and text has the menu with *Add to story*, and what is added is what was seen."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.base.text import plain
from app.new_run.prompt_view import tokens_as_text
from app.runs import MOST_LISTED, slide_rows
from kvlab.report import slide_parts
from kvlab.report.views import Passages, Shown, Table, Text, parse_shown
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace import open_run
from kvlab.trace.stories import Story, View, load_story, save_story
from tests.pages.conftest import PAGES, ROOT
from tests.pages.test_restore_page import looked_into
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
STORY = "My story"
DRAWING = {
    "dataframe", "plotly_chart", "table", "data_editor", "image", "html", "json", "code", "pyplot", "graphviz_chart",
    "vega_lite_chart", "altair_chart", "line_chart", "bar_chart", "area_chart", "scatter_chart", "pydeck_chart",
}  # fmt: skip
MENUS = {"show_title", "menu", "heading"}
NO_VIEW = {  # what draws and is nothing to show alone, with the reason
    "app/entries/glossary.py card": "an explanation of a term, the same for every run",
    "app/entries/papers.py show_card": "a small picture that leads to its figure",
    "app/entries/papers.py place_card": "the place of such a picture",
    "app/entries/papers.py summarise": "the same picture while exhibits are judged",
    "app/entries/papers.py show_overview": "places of the summary and cards",
    "app/compare/board.py _run_rows": "beginnings of the texts, which are a slide below",
    "app/live/start.py text_section": "a form: prefixes that can be chosen",
    "app/entries/live.py conversation": "styles",
    "app/live/answers.py present": "styles",
    "app/live/answers.py last_answers": "words of a conversation on a projector",
    "app/entries/live.py show_questions": "words of a conversation, which is not a recorded view",
    "app/navigation/context_bar.py begin": "styles",
    "app/navigation/menu.py top_tools": "the choice of the theme",
    "app/navigation/menu.py page_tabs": "styles",
    "app/papers/exhibit.py needs": "a command to copy",
    "app/papers/exhibit.py figure": "a command to copy; the figure has its menu by `show`",
    "app/papers/measure_button.py measure_button": "a command to copy",
    "app/queue/job_panel.py _request": "a setting to copy",
    "app/queue/job_panel.py _details": "a log that goes on",
    "app/queue/race.py show_race": "texts that are being written; above those of ended runs there is a menu",
    "app/new_run/prompt_source.py _chosen_rows": "a form: prompts that are ticked and whose answers are typed",
    "app/navigation/context_bar.py prompt_text": "the prompt, with its own button for a slide",
    "app/entries/new_run.py form": "styles",
    "app/navigation/page.py run_scrubber": "a choice of the step",
    "app/entries/home.py start_page": "a schematic",
    "app/entries/story.py view_row": "a small picture of a slide that is in the story",
}
CONTROLS = {  # components that one works with and does not look at
    "add_slide", "component", "context_bar", "links", "place", "story",
}  # fmt: skip
ELSEWHERE = {"similarity"}  # whose page draws the heading over it


def drawing_functions() -> Iterator[tuple[str, set[str]]]:
    """Every function of the dashboard that draws something, and the names of what it calls."""
    for file in sorted((ROOT / "app").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            called = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
            names = {one.id for one in called if isinstance(one, ast.Name)}
            drawn = {
                one.attr for one in called if isinstance(one, ast.Attribute) and ast.unparse(one.value) != "writer"
            }
            component = "_component" in names and file.stem not in CONTROLS | ELSEWHERE
            if drawn & DRAWING or component:
                yield f"{file.relative_to(ROOT)} {node.name}", names


def test_whatever_draws_has_a_menu_or_a_reason_why_not():
    without = {name for name, called in drawing_functions() if not called & MENUS}
    assert without - set(NO_VIEW) == set(), (
        "give it a menu (app.figures.export_menu.show_title), or say why it is no view"
    )
    assert set(NO_VIEW) - without == set(), "these draw no more, or have a menu now"


def menus(page: AppTest) -> list[str]:
    """The keys of the buttons that add a view to a story."""
    return [button.key for button in page.button if str(button.key).endswith("-slide")]


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("papers", "restore")])
def test_a_page_has_as_many_menus_as_tables_and_charts(look: Open, name: str):
    page = look(name)
    assert not page.exception
    views = len(page.dataframe) + len(page.get("plotly_chart"))
    kept = [key for key in menus(page) if key != "context-prompt-slide"]
    assert len(kept) >= views and len(kept) == len(set(kept))


def added(page: AppTest, root: Path, key: str) -> tuple[View, Shown]:
    """The slide that a menu adds, and what it shows."""
    page = page.button(key=f"{key}-slide").click().run()
    assert not page.exception
    view = load_story(root, STORY).views[-1]
    return view, parse_shown(view)


def test_the_list_of_runs_is_a_slide_with_its_filters_and_columns(synthetic_runs: Path, open_page: Open):
    page = open_page("runs", text="older", sort="bytes", columns="title.methods.created")
    view, shown = added(page, synthetic_runs, "runs-list")
    assert isinstance(shown, Table) and shown.columns == ("title", "methods", "date (UTC)")
    ((title, methods, date),) = shown.rows
    assert (title, sorted(methods.split(", "))) == ("the older one", ["h2o", "keepkv"]) and date
    assert view.page == "runs" and view.query["text"] == "older" and view.query["columns"] == "title.methods.created"
    assert view.slide is not None and view.slide.caption.startswith("1 shown of 2 comparisons")
    assert view.slide.of == "All runs · “older” · sorted by bytes"


def test_of_chosen_runs_these_alone_are_on_the_slide():
    table = slide_rows(pd.DataFrame({"open": ["/x"] * 60, "tags": [["a", "b"]] * 60, "title": range(60)}))
    assert table.columns == ("tags", "title") and table.rows[0] == ("a, b", "0")
    assert len(table.rows) == MOST_LISTED and table.left_out == 60 - MOST_LISTED


def test_plan_prompt_and_card_of_a_new_run_are_slides(runs_root: Path, open_page: Open):
    page = open_page("new_run", methods="H2O", budgets="0.2")
    view, shown = added(page, runs_root, "prompt-text")
    assert isinstance(shown, Passages) and shown.passages[0][1][0].text == shipped_samples()[0].text
    assert view.page == "new_run" and view.query["methods"] == "H2O"
    _, shown = added(page, runs_root, "mini-taught")
    assert isinstance(shown, Table) and shown.columns[0] == "kind" and len(shown.rows) > 3
    view, shown = added(page, runs_root, "plan-table")
    assert isinstance(shown, Table) and shown.columns == ("part", "bytes", "what it is")
    assert view.slide is not None and "mini" in view.slide.of
    page = open_page("new_run", show_tokens="true")
    _, shown = added(page, runs_root, "prompt-tokens")
    assert isinstance(shown, Text) and shipped_samples()[0].text in "".join(shown.texts) and {0, 1} <= set(shown.codes)


def test_tokens_on_a_slide_are_all_of_the_text_and_say_which_are_the_templates():
    text, spans = "<u>one two</u>", [(0, 3), (3, 6), (7, 10), (10, 14)]
    shown = tokens_as_text(text, spans, (3, 10))
    assert shown.texts == ("<u>", "one ", "two", "</u>") and shown.codes == (2, 1, 0, 2)
    assert "".join(tokens_as_text(text, [], None).texts) == text


def test_the_prompt_of_a_run_is_a_slide(synthetic_runs: Path, open_page: Open):
    _, shown = added(open_page("timeline", run="newer-h2o-25pc-0"), synthetic_runs, "context-prompt")
    prompt = open_run(synthetic_runs / "newer-h2o-25pc-0").record.prompt
    assert isinstance(shown, Passages) and shown.passages[0][1][0].text == prompt


def test_what_was_written_before_and_after_is_a_slide(runs_root: Path, open_page: Open):
    write_synthetic_run(runs_root, method="full")
    run = open_run(write_synthetic_run(runs_root, method="h2o", budget=0.2))
    looked_into(runs_root, run)
    page = open_page("restore", run=run.record.run_id)
    assert len(menus(page)) >= 1 + len(page.dataframe) + len(page.get("plotly_chart"))
    _, shown = added(page, runs_root, "restore-texts")
    assert isinstance(shown, Passages)
    assert [segments[0].text for _, segments in shown.passages] == ["<b>wrong</b>", "the answer 7"]


def test_a_talk_that_cannot_be_made_here_is_a_disabled_button_and_a_sentence(
    runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(slide_parts, "find_spec", lambda name: None)
    save_story(runs_root, Story(name=STORY, views=(View(page="sag", caption="First."),)))
    page = open_page("story")
    disabled = {one.proto.label: one.proto.disabled for one in page.get("download_button")}
    assert disabled["Talk (PPTX)"] and not disabled["Talk (HTML)"]
    assert plain(slide_parts.MISSING) in [one.value for one in page.caption]
