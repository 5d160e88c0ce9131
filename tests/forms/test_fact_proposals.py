"""The sentence that holds the answer is proposed as its fact."""

from __future__ import annotations

import pytest

from kvlab.requests.facts import LONGEST_FACT, proposed_facts, sentences

TEXT = 'It was late.  The number is 48213! "Is it 48213?" she asked.\nNo. 3.5 lamps\n\nThe number is 48213'


def words(text: str, *answers: str) -> list[str]:
    return [text[start:stop] for start, stop in proposed_facts(text, answers)]


def test_sentences_cover_the_words_of_a_text_and_numbers_do_not_end_them():
    assert [TEXT[start:stop] for start, stop in sentences(TEXT)] == [
        "It was late.", "The number is 48213!", '"Is it 48213?"', "she asked.", "No.", "3.5 lamps",
        "The number is 48213",
    ]  # fmt: skip
    assert sentences(" \n ") == []
    assert len(sentences("It was\nlate in the\nday\nThe end")) == 2, "lines of fixed width are one sentence"


def test_sentences_that_hold_the_answer_are_proposed_but_no_questions():
    assert words(TEXT, "48213") == ["The number is 48213!", "The number is 48213"]
    assert words(TEXT, "nothing", "LATE") == ["It was late."]
    assert words(TEXT, "821") == [], "an answer is a whole number"
    assert words("番号は48213です。次。", "48213") == ["番号は48213です。"]


@pytest.mark.parametrize("before", [0, 5, 2000])
def test_of_a_long_sentence_whole_words_around_the_answer_are_proposed(before: int):
    text = "one word after another " * before + "the number 48213 " + "and so on " * 100
    (fact,) = words(text, "48213")
    assert "48213" in fact and len(fact) <= LONGEST_FACT and fact == fact.strip()
    assert set(fact.split()) <= set(text.split()), "no word is cut"


def test_a_text_without_spaces_is_cut_around_the_answer():
    text = "x" * 1000 + "、48213、" + "y" * 1000
    (fact,) = words(text, "48213")
    assert "48213" in fact and len(fact) <= LONGEST_FACT
