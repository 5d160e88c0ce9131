"""Rules for answers: each check against answers written by hand, and what is drawn."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.tasks.rules import KINDS, MOST_RULES, draw_rules, obeys

# (rule, texts that obey it, texts that do not)
KNOWN = [
    (
        "starts_with=Ahoy sea",
        ["Ahoy sea, hello", "  “ahoy sea”", "**Ahoy sea**"],
        ["Hello. Ahoy sea", "Ahoy seaman", ""],
    ),
    (
        "ends_with=Mind the wall",
        ["x. Mind the wall.", "mind the wall!”"],
        ["Mind the wall. Bye", "Mind the walls", "the wall"],
    ),
    ("contains=ring", ["A ring.", "RING"], ["spring", "", "rings"]),
    ("without=the", ["Other things", "then"], ["See the sea", "THE", ""]),
    ("most words=3", ["one two-three don't", "a"], ["one two three four", ""]),
    ("sentences=2", ["One. Two!", "One\nTwo", "Is it? Yes"], ["One.", "One. Two. Three.", "...", ""]),
    ("letters=capital", ["ALL, 3 CAPITALS", "Ω"], ["All", "123", ""]),
    ("letters=small", ["all, 3 small"], ["All", "..."]),
    ("list=", ["- a\n- b", "1. a\n\n2) b", "* a"], ["- a\nb", "text", "-a", ""]),
    ("no rule at all", ["here is no rule at all"], ["no rule"]),
]


@pytest.mark.parametrize(("spec", "right", "wrong"), KNOWN)
def test_right_answers_obey_and_wrong_ones_do_not(spec, right, wrong):
    assert [text for text in right if not obeys(text, spec)] == []
    assert [text for text in wrong if obeys(text, spec)] == []


def test_an_unknown_rule_names_the_known_ones():
    with pytest.raises(UserError, match="no rule 'rhymes': write one of starts_with"):
        obeys("text", "rhymes=yes")


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), count=st.integers(1, MOST_RULES))
def test_rules_are_of_different_kinds_and_half_are_phrases(seed, count):
    drawn = draw_rules(Random(seed), count)
    kinds = [rule.kind for rule in drawn]
    assert len(drawn) == count == len(set(kinds)) and set(kinds) <= set(KINDS)
    assert 2 * sum(rule.opening for rule in drawn) >= count
    assert not {"sentences", "list"} <= set(kinds)
    assert drawn == draw_rules(Random(seed), count)
    for rule in drawn:
        assert rule.value in rule.text and rule.wanted.lower() in f"{rule.value} {rule.spec}".lower()


def test_every_kind_comes_first_somewhere():
    assert {draw_rules(Random(seed), 4)[0].kind for seed in range(200)} == set(KINDS)


def test_an_answer_can_obey_all_phrases_at_once():
    text = "Ahoy King! A purple tower in Oslo.\nCaptain Sea\nMind the Gate."
    specs = [
        "starts_with=Ahoy King",
        "contains=Purple",
        "contains=Oslo",
        "contains=Captain Sea",
        "ends_with=Mind the Gate",
    ]
    assert all(obeys(text, spec) for spec in [*specs, "most words=30", "sentences=4", "without=is"])


def test_words_and_sentences_are_counted_in_a_plain_way():
    six = "It's a well-known fact, isn't it?"
    assert obeys(six, "most words=6") and not obeys(six, "most words=5")
    assert obeys(" One. Two?! (Three)\n\n4", "sentences=4")
