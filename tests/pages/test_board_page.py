"""Compare opens with the board: what is asked for, a cell a run, the ranking with all it leaves out, a form to add."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvlab.trace import open_run
from kvlab.trace.record import FILE
from kvlab.trace.user_labels import load_labels, save_answer
from kvlab.views.frames.labels import distinct_names
from tests.synthetic.runs import write_synthetic_run

Open = Callable[..., AppTest]
METHODS = (("full", 1.0), ("h2o", 0.2), ("h2o", 0.5), ("keepkv", 0.2), ("gone", 0.2))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("board")
    return [
        write_synthetic_run(root, method=name, budget=budget, status="cancelled" if name == "gone" else "complete")
        for name, budget in METHODS
    ]


@pytest.fixture
def runs(made: list[Path], runs_root: Path) -> list[Path]:
    """A copy of the runs for each test, as answers are saved beside them."""
    shutil.copytree(made[0].parent, runs_root, dirs_exist_ok=True)
    return [runs_root / path.name for path in made]


def told(page: AppTest) -> str:
    assert not page.exception
    every = [*page.markdown, *page.caption, *page.info, *page.warning, *page.error]
    return "\n".join(str(element.value).replace("\\", "") for element in every).replace("\u00a0", " ")


def own_words(path: Path) -> str:
    """Words of the full cache's continuation, which it therefore answers with."""
    forced = open_run(path).tokens.query("phase == 'forced'")["text"].tolist()
    return "".join(forced[2:4]).strip()


def add_answer(page: AppTest, answer: str, fact: str = "") -> AppTest:
    page.text_input(key="answer-synthetic").input(answer)
    page.text_area(key="facts-synthetic").input(fact)
    return next(button for button in page.button if button.label == "Score the runs").click().run()


@pytest.fixture(autouse=True)
def first_chart_is_there() -> None:
    """Nothing below the board is drawn, as where the browser has not painted its first chart yet."""


def test_without_an_answer_it_says_so_and_an_added_one_is_scored_at_once(
    runs: list[Path], runs_root: Path, open_page: Open
):
    page = open_page("compare")
    assert "There is no expected answer" in told(page)
    assert not page.get("plotly_chart") or "Is the answer still right?" not in told(page)
    before = {path: (path / FILE).read_bytes() for path in runs}
    prompt = open_run(runs[0]).record.prompt
    answer = own_words(runs[0])
    page = add_answer(page, answer, prompt[30:60].strip())
    text = told(page)
    assert f"Expected answer: **{answer}**. The full cache generates it" in text
    assert "Is the answer still right?" in text
    assert "By the answer" in text
    assert "own answer is another one" not in text
    assert "answer" in page.dataframe[0].value
    saved = json.loads((runs_root / "labels" / "synthetic.json").read_text())
    assert saved["answer"] == answer
    assert {path: (path / FILE).read_bytes() for path in runs} == before, "the records stay as they were written"


def test_a_fact_is_marked_by_clicking_words_where_an_answer_is_added_later(
    runs: list[Path], runs_root: Path, open_page: Open
):
    prompt = open_run(runs[0]).record.prompt
    word = next(word for word in prompt.split() if prompt.count(f" {word} ") > 1)
    second = prompt.index(f" {word} ", prompt.index(f" {word} ") + 1) + 1
    page = open_page("compare")
    page.session_state["facts-marked-synthetic"] = (prompt, ((second, second + len(word)),))
    add_answer(page, own_words(runs[0]))
    assert load_labels(runs_root, "synthetic").facts == ((second, second + len(word)),), "not where it stands first"
    again = open_page("compare")
    assert again.session_state["facts-marked-synthetic"][1] == ((second, second + len(word)),), "it is shown marked"
    assert "marked" not in again.query_params


def test_a_long_prompt_s_form_is_made_once_it_is_opened(
    runs: list[Path], runs_root: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.compare.board.LONG_TEXT", 20)
    page = open_page("compare")
    assert not [field for field in page.text_input if field.label == "Expected answer"]
    page = open_page("compare", answer_open="true")
    assert "Is the answer still right?" in told(add_answer(page, own_words(runs[0])))


def test_bad_words_are_one_sentence_and_nothing_is_saved(runs: list[Path], runs_root: Path, open_page: Open):
    page = open_page("compare")
    assert "letter by letter" in told(add_answer(page, "x", "words that the prompt lacks"))
    assert "answer is empty" in told(add_answer(page, " "))
    assert not (runs_root / "labels").exists()


def test_a_reference_that_fails_is_said_over_the_board(runs: list[Path], open_page: Open):
    page = add_answer(open_page("compare"), "no such answer", open_run(runs[0]).record.prompt[30:60].strip())
    assert "at the end of the prompt (after step 0), of the text" in told(page), "no answer was written"
    assert "the full cache must answer" in told(page)
    warned = [str(element.value) for element in page.warning]
    assert any("full cache's own answer is another one, so rankings show similarity" in line for line in warned)


@pytest.mark.parametrize("name", ["compare", "papers"])
@pytest.mark.parametrize("answers", [True, False])
def test_every_page_that_ranks_warns_where_the_reference_fails_and_only_there(
    runs: list[Path], runs_root: Path, open_page: Open, name: str, answers: bool
):
    prompt = open_run(runs[0]).record.prompt
    save_answer(runs_root, "synthetic", prompt, own_words(runs[0]) if answers else "no such answer")
    page = open_page(name, search="votes")  # of the papers, the few cards with this word
    assert not page.exception
    assert any("own answer is another one" in str(element.value) for element in page.warning) != answers


@pytest.mark.parametrize("answer", [True, False])
def test_no_ranking_without_its_omissions(runs: list[Path], open_page: Open, answer: bool):
    page = open_page("compare")
    if answer:
        page = add_answer(page, own_words(runs[0]))
    text = told(page)
    ranking = text[text.index("to the full cache first") :]
    for name in distinct_names([open_run(path).record for path in runs]):
        assert f"**{name}**" in ranking
    assert "Not ranked: " in ranking


def test_the_cell_looked_into_is_chosen_and_lies_in_the_address(runs: list[Path], open_page: Open):
    page = add_answer(open_page("compare"), own_words(runs[0]), open_run(runs[0]).record.prompt[30:60].strip())
    names = distinct_names([open_run(path).record for path in runs])
    labels = {path.name: name for path, name in zip(runs[1:], names[1:], strict=True)}
    for name, label in labels.items():
        page = page.selectbox(key="board-cell").set_value(name).run()
        assert f"{label}: fate of the fact's tokens by head" in told(page)
    assert page.query_params["cell"] in (name, [name]), "the default needs no place in the address, a choice does"
    del page.query_params["cell"]  # as a request brings it that was on the way before the browser heard
    assert page.run().query_params["cell"] in (name, [name])
    assert page.selectbox(key="board-cell").value == name
    again = open_page("compare", cell=runs[2].name)
    assert again.selectbox(key="board-cell").value == runs[2].name


def test_a_cell_that_is_right_later_than_the_full_cache_says_from_which_token(runs: list[Path], open_page: Open):
    first = open_run(runs[0]).tokens.query("phase == 'forced'")["text"].iloc[0].strip()  # the others write it later
    page = add_answer(open_page("compare"), first)
    answers = set(page.dataframe[0].value["answer"])
    late = {answer for answer in answers if str(answer).startswith("right, from token")}
    assert late
    options = page.selectbox(key="board-cell").options
    assert all(any(option.endswith(answer) for option in options) for answer in late)
    assert told(page)


def test_what_leads_on_from_a_cell_is_about_the_cell_that_is_named(runs: list[Path], runs_root: Path, open_page: Open):
    page = add_answer(open_page("compare"), own_words(runs[0]), open_run(runs[0]).record.prompt[30:60].strip())
    table = page.dataframe[0].value.set_index("method")["answer"]
    names = distinct_names([open_run(path).record for path in runs])
    for path, label in zip(runs[1:], names[1:], strict=True):
        page = page.selectbox(key="board-cell").set_value(path.name).run()
        offered = [str(button.key) for button in page.button if str(button.key).startswith("restore-")]
        lost = str(table[label]).startswith(("wrong", "nearly"))
        assert offered == ([f"restore-{path.name}"] if lost else [])
    assert {str(words).startswith(("wrong", "nearly")) for words in table} == {True, False}, "both are among them"


def test_an_answer_without_a_fact_says_that_none_is_marked(runs: list[Path], open_page: Open):
    text = told(add_answer(open_page("compare"), "words that the prompt lacks"))
    assert "No fact is marked: click its words below" in text
    assert "record the comparison at level full" not in text, "it was recorded at that level"


@pytest.mark.parametrize("level", ["light", "off"])
def test_lighter_levels_have_verdicts_without_strips(runs_root: Path, open_page: Open, level: str):
    paths = [write_synthetic_run(runs_root, method=method, level=level) for method in ("full", "keepkv")]
    fact = open_run(paths[0]).record.prompt[30:60].strip()
    text = told(add_answer(open_page("compare"), own_words(paths[0]), fact))
    assert "The answer is right in" in text
    assert "was not recorded: record the comparison at level full" in text


def test_the_board_shows_the_runs_at_the_budget_of_the_slider(runs: list[Path], open_page: Open):
    page = add_answer(open_page("compare"), own_words(runs[0]), open_run(runs[0]).record.prompt[30:60].strip())
    assert "of the 4 runs" in told(page)
    page = page.select_slider(key="budget").set_value("50 %").run()
    text = told(page)
    assert "the only run" in text or "in no run" in text
    options = page.selectbox(key="board-cell").options
    assert len(options) == 1 and options[0].startswith("h2o ·")
