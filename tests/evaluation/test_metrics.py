"""Metrics against values worked out by hand, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.evaluation.scoring.metrics import (
    LIKELIHOOD_METRICS,
    METRICS,
    higher_is_better,
    is_installed,
    normalize,
    score,
)

WORDS = st.lists(st.sampled_from(["cat", "dog", "7", "house", "blue"]), min_size=1, max_size=8).map(" ".join)

KNOWN = [
    ("string_match_all", "A and b here", ["a", "B", "zebra"], [], 2 / 3),
    ("string_match_all", "spring", ["ring"], [], 1),
    ("string_match_part", "it is B", ["x", "b"], [], 1),
    ("string_match_part", "nothing", ["x", "b"], [], 0),
    ("whole_match_all", "spring, king.", ["ring", "King"], [], 1 / 2),
    ("whole_match_all", "hate 51234", ["1234"], [], 0),
    ("whole_match_all", "12345, 67890.", ["67890", "12345"], [], 1),
    ("exact_match", " The  cat!", ["cat"], [], 1),
    ("exact_match", "cats", ["cat"], [], 0),
    ("word_prefix", "one two six four.", ["one two three four"], [], 1 / 2),
    ("word_prefix", "one two three four.", ["one two three four"], [], 1),
    ("word_prefix", "one two", ["one two three four"], [], 1 / 2),
    ("word_prefix", "", ["one"], [], 0),
    # 2 words in common of 3 predicted and 2 expected: precision 2/3, recall 1
    ("f1", "the black cat sat", ["black cat"], [], 0.8),
    ("f1", "yes", ["no", "yes"], [], 1),
    # longest common subsequence 4 of 6 and 4 words
    ("rouge_l", "the cat the mat", ["the cat sat on the mat"], [], 0.8),
    # indel distance 2 of 8 characters
    ("edit_similarity", "abcd", ["abed"], [], 0.75),
    ("edit_similarity", "\n# a comment\n// another\nabcd\nrest", ["abcd"], [], 1),
    ("count", "5 or 6 or 5", ["5"], [], 2 / 3),
    ("count", "none", ["5"], [], 0),
    ("retrieval", "Paragraph 12 or 3", ["Paragraph 12"], [], 1 / 2),
    ("classification", "It is Food, other", ["Food"], ["Food", "Other food", "Date"], 1),
    ("classification", "Food or Date", ["Food"], ["Food", "Date"], 1 / 2),
    ("classification", "Other food", ["Other food"], ["food", "Other food"], 1),
    ("classification", "Date", ["Food"], ["Food", "Date"], 0),
    ("final_number", "so 12 + 30 = 42", ["12 + 30 = 42"], [], 1),
    ("final_number", "is 1,234.0 then", ["work\n#### 1234"], [], 1),
    ("final_number", "#### 7 and 8", ["#### 7"], [], 1),
    ("final_number", "no number", ["#### 7"], [], 0),
    ("final_number", "-3", ["#### 3"], [], 0),
    ("each_line", "12345.\nno\n777", ["12345", "67890", "777"], [], 2 / 3),
    ("each_line", "777\n12345", ["12345", "777"], [], 0),  # right, but to the other question
    ("each_line", "12345", ["12345", "777"], [], 1 / 2),
    ("line_results", "5 + 3 = 8\n\nStep 2: 8 - 2 = 6\nStep 3: 6 + 4 = 11", ["8", "6", "10"], [], 2 / 3),
    ("line_results", "8 - 2 = 6 because", ["8"], [], 0),
    ("walk", "garden -> Sea -> hill", ["garden", "sea", "hill", "king"], [], 3 / 4),
    ("walk", "sea -> garden", ["garden", "sea"], [], 0),
    (
        "rules",
        "Ahoy sea! All is well.",
        ["starts_with=Ahoy sea", "contains=well", "without=is", "most words=5"],
        [],
        3 / 4,
    ),
    ("rules", "", ["without=is"], [], 0),
    ("all_rules", "Ahoy sea!", ["starts_with=Ahoy sea", "most words=2"], [], 1),
    ("all_rules", "Ahoy sea, hey!", ["starts_with=Ahoy sea", "most words=2"], [], 0),
]


@pytest.mark.parametrize(("metric", "prediction", "answers", "classes", "expected"), KNOWN)
def test_known_values(metric, prediction, answers, classes, expected):
    assert score(metric, prediction, answers, classes) == pytest.approx(expected)


@given(st.sampled_from(sorted(filter(is_installed, METRICS))), WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_scores_lie_between_0_and_1(metric, prediction, answers):
    assert 0 <= score(metric, prediction, answers) <= 1


# A number, a box, a sentence is wanted of some; a text of one word has no ROUGE-2.
OF_A_FORM = {
    "count",
    "line_results",
    "retrieval",
    "final_number",
    "boxed",
    "letter_choice",
    "rouge_2",
    "rouge_2_longbench",
}


@given(st.sampled_from(sorted(filter(is_installed, set(METRICS) - OF_A_FORM))), WORDS)
def test_the_answer_itself_scores_1(metric, answer):
    assert score(metric, answer, [answer], [answer]) == pytest.approx(1)


@given(st.sampled_from(["f1", "rouge_l", "edit_similarity", "word_prefix"]), WORDS, WORDS, WORDS)
def test_another_right_answer_never_lowers_the_score(metric, prediction, answer, other):
    assert score(metric, prediction, [answer, other]) >= score(metric, prediction, [answer])


@given(st.sampled_from(["f1", "rouge_l"]), WORDS, WORDS)
def test_overlap_measures_are_symmetric(metric, left, right):
    assert score(metric, left, [right]) == pytest.approx(score(metric, right, [left]))


def test_normalize_follows_squad():
    assert normalize("The  Cat, a dog & AN apple!") == "cat dog apple"


def test_lower_is_better_for_likelihoods_only():
    assert not any(higher_is_better(metric) for metric in LIKELIHOOD_METRICS)
    assert all(higher_is_better(metric) for metric in METRICS)


def test_an_unknown_metric_names_the_known_ones():
    with pytest.raises(UserError, match="rouge_l"):
        score("bleu", "a", ["a"])
