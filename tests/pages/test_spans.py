"""The page of prompt spans: every run that can be read, the spans of the link, and one sentence where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.pages.test_wall import told
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
PROMPT = "Rules:\n- The city is: Oslo.\n- The colour is: Green.\n\nThe number is 48213.\n\nMore.\n\nWhich number?"


@pytest.fixture
def comparison(runs_root: Path) -> Path:
    fact = PROMPT.index("48213")
    kept = {"prompt": PROMPT, "steps": 4, "answer": "48213", "facts": ((fact, fact + 5),)}
    for method, budget in (("full", 1.0), ("h2o", 0.3), ("h2o", 0.6), ("keepkv", 0.3)):
        write_synthetic_run(runs_root, method=method, budget=budget, comparison_id="one", **kept)
    return runs_root


def test_the_page_shows_every_run_and_the_link_carries_spans(comparison: Path, open_page: Open) -> None:
    page = open_page("spans", comparison="one", step="4")
    words = told(page)
    assert "What is kept of each part of the prompt after step 4" in words
    assert "Averaged over the runs, most is kept whole of" in words
    specs = " ".join(element.proto.spec for element in page.get("plotly_chart"))
    assert "rules obeyed" in specs and "answer" in specs
    typed = page.text_area[0]
    assert [line.split(":")[0] for line in typed.value.splitlines()] == [
        "template", "heading of the rules", "rule 1", "rule 2", "paragraph 1", "fact", "paragraph 2", "question",
    ]  # fmt: skip
    typed.set_value("begin: 0-5\nlater: 9")
    page = page.button(key="spans-show").click().run()
    assert page.query_params["spans"] in ("begin:0-5;later:9", ["begin:0-5;later:9"])
    assert page.text_area[0].value == "begin: 0-5\nlater: 9"
    assert "later" in told(page)
    page.text_area[0].set_value("begin: 5-0")
    page = page.button(key="spans-show").click().run()
    assert "give first and last" in told(page)
    chosen = open_page("spans", run="one-h2o-30pc-0", token="6", spans="begin:0-5;later:6,9")
    links = {part.proto.page: part.proto.query_string for part in chosen.get("page_link")}
    strings = [part.proto.query_string for part in chosen.get("page_link")]
    assert "span=6-6" in links["autopsy"] and "run=one-h2o-30pc-0" in links["autopsy"]
    assert any("token=6" in query and "run=one" in query for query in strings)
    assert "**later** in **h2o 30 %**" in told(chosen)
    lines = open_page("spans", comparison="one", spans="nonsense", spans_view="by budget")
    assert "is not a span" in told(lines)
    assert ", by budget" in told(lines)


def test_runs_without_events_and_an_empty_folder_get_one_sentence(runs_root: Path, open_page: Open) -> None:
    assert "There are no runs yet" in told(open_page("spans"))
    write_synthetic_run(runs_root, method="h2o", level="light", steps=4)
    assert "was recorded at level light, without events" in told(open_page("spans"))
    write_synthetic_run(runs_root, method="keepkv", steps=4)
    write_synthetic_run(runs_root, method="full", steps=4, prompt_tokens=40)
    words = told(open_page("spans"))
    assert "has read other tokens" in words
    assert "is kept whole" in words
