"""Facts by clicking words: places are those of the words in the text, and a changed text loses only its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from app.components import marked_words, word_spans, words_between
from kvlab.requests.compare import CompareRequest
from tests.pages.forms import submitted

Open = Callable[..., AppTest]
TEXT = "It was late. The old lamp went out. Then the lamp was lit. Rain came in."
TEXTS = st.lists(st.sampled_from(["lamp", "a", "it.", "“No!”", "\N{SNOWMAN}", "x y", "\n", "  ", "\t"]), max_size=30)


@given(TEXTS, st.data())
def test_a_fact_is_the_text_from_one_word_to_another(pieces: list[str], data: st.DataObject):
    text = " ".join(pieces)
    words = text.split()
    assume(words)
    one, other = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
    start, stop = words_between(text, one, other)
    first, last = min(one, other), max(one, other)
    assert text[start:stop].split() == words[first : last + 1]
    assert text[start:stop].strip() == text[start:stop]
    assert marked_words(text, [(start, stop)]) == [(first, last)], "and is marked where it was clicked"
    assert len(word_spans(text)) == len(words)


def test_part_of_a_word_marks_the_word_and_a_place_beyond_the_text_none():
    assert marked_words("red lamp", [(5, 6), (90, 95)]) == [(1, 1), (-1, -1)]


def pasted(open_page: Open, text: str = TEXT, **query: str) -> AppTest:
    page = open_page("new_run", source="Paste", **query)
    return page.text_area(key="pasted").input(text).run()


def words_of(request: CompareRequest) -> list[str]:
    return [request.prompt[start:stop] for start, stop in request.facts]


def test_clicked_facts_are_recorded_at_their_place_beside_typed_ones(runs_root: Path, open_page: Open):
    second = TEXT.rindex("lamp")
    page = pasted(open_page)
    page.session_state["facts-marked"] = (TEXT, ((second, second + 4),))
    page.text_input(key="answer").input("out")
    page = page.text_area(key="facts").input("Rain").run()
    request = submitted(page, runs_root)
    assert words_of(request) == ["lamp", "Rain"]
    assert request.facts[0][0] == second, "the place that was clicked, not the first of its words"


def test_a_link_keeps_marked_facts_and_leaves_out_what_is_no_place(runs_root: Path, open_page: Open):
    page = pasted(open_page, marked="17-25,3-1,900-950")
    assert words_of(submitted(page, runs_root)) == [TEXT[17:25]]


def test_a_changed_text_keeps_the_facts_whose_words_it_has(runs_root: Path, open_page: Open):
    page = pasted(open_page)
    page.session_state["facts-marked"] = (TEXT, ((13, 25), (59, 63)))
    page = page.text_area(key="pasted").input("Well. " + TEXT.replace("Rain", "Snow")).run()
    assert words_of(submitted(page, runs_root)) == [TEXT[13:25]]
