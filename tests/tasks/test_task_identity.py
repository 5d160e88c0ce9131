"""Seeds, indices and depths: what makes a sample the same, and what makes it another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.models.info.mini import TRAINING_SEED_START
from kvlab.tasks.haystack import Window, draw_window, hide
from kvlab.tasks.registry import TASKS, get_task
from kvlab.tasks.sample import sample_random

WITH_DEPTH = sorted(name for name, task in TASKS.items() if task.uses_depth)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_same_seed_same_sample_other_index_or_seed_another(small_tokenizer, name):
    task = get_task(name)
    first = task.generate(small_tokenizer, 800, 5, 2)
    assert task.generate(small_tokenizer, 800, 5, 2) == first
    for seed, index in ((5, 3), (6, 2)):
        other = task.generate(small_tokenizer, 800, seed, index)
        assert other.context != first.context
        assert other.answers != first.answers


@pytest.mark.parametrize("seed", [-1, TRAINING_SEED_START, 2 * TRAINING_SEED_START])
def test_seeds_of_training_are_refused(small_tokenizer, seed):
    with pytest.raises(UserError, match="out of range"):
        get_task("needle").generate(small_tokenizer, 300, seed, 0)


@pytest.mark.parametrize("name", WITH_DEPTH)
def test_depth_moves_the_statement_and_changes_nothing_else(small_tokenizer, name):
    samples = [get_task(name).generate(small_tokenizer, 1000, 1, 4, depth=depth) for depth in (0.0, 0.5, 1.0)]
    assert len({sample.question for sample in samples}) == 1
    assert len({tuple(sample.answers) for sample in samples}) == 1
    places = [place_of_answer(sample) for sample in samples]
    assert places == sorted(places)
    assert places[0] < 0.3 < places[1] < 0.8 < places[2] + 0.4
    assert [sample.depth for sample in samples] == [0.0, 0.5, 1.0]


def place_of_answer(sample):
    if "block" in sample.meta:
        before = sample.context.index(sample.meta["block"])
        room = len(sample.context) - len(sample.meta["block"])
        return before / room
    text = sample.decoded or sample.context
    return text.index(sample.answers[0]) / len(text)


def test_the_needle_is_first_at_depth_0_and_last_at_depth_1(small_tokenizer):
    task = get_task("needle")
    for index in range(5):
        first = task.generate(small_tokenizer, 600, 0, index, depth=0.0)
        last = task.generate(small_tokenizer, 600, 0, index, depth=1.0)
        assert first.context.startswith(f" {first.meta['statements'][0]} ")
        assert last.context.endswith(f" {last.meta['statements'][0]}")


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_statements_stand_at_the_nearest_free_break_in_the_order_given(sentences, words, depths):
    text = tuple(word for i in range(sentences) for word in [*["word "] * (words - 1), f"end{i}. "])
    window = Window(text, tuple(range(words, sentences * words, words)))
    depths.sort()
    statements = [f"<{i}>" for i in range(len(depths))]
    hidden = hide(window, statements, depths)
    places = [hidden.index(statement) for statement in statements]
    assert places == sorted(places)
    assert all(hidden[place - 1] == " " for place in places)
    left = " ".join(part for part in hidden.split() if not part.startswith("<"))
    assert left == window.text
    if len(depths) == 1:
        sentence = len(window.text) / sentences
        before = len(hidden[: places[0]].strip())
        assert abs(before - depths[0] * len(window.text)) <= sentence / 2 + 8


def test_real_prose_has_breaks_near_every_depth(small_tokenizer):
    task = get_task("needle")
    misses = []
    for index in range(30):
        depth = index / 29
        sample = task.generate(small_tokenizer, 2000, 8, index, depth=depth)
        misses.append(abs(sample.context.index(sample.meta["statements"][0]) / len(sample.context) - depth))
    assert sorted(misses)[len(misses) // 2] < 0.02
    assert max(misses) < 0.2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 400))
def test_windows_hold_whole_words_and_breaks_between_sentences(seed, count):
    window = draw_window(sample_random("window", 0, seed, 0), count)
    assert len(window.words) == count
    for place in window.breaks:
        assert window.words[place - 1].rstrip().rstrip("”’\"')_")[-1] in ".!?"
        assert window.words[place - 1].endswith(" ")


@pytest.mark.parametrize(
    ("name", "difficulty"),
    [
        ("needle_multikey", {"needles": 0}),
        ("needle_multikey", {"needles": 2.5}),
        ("needle_multikey", {"needles": True}),
        ("needle_multikey", {"needles": "many"}),
        ("needle_multikey", {"straws": 3}),
        ("needle", {"needles": 3}),
        ("instructions", {"place": "top"}),
        ("rules_recited", {"place": 2}),
    ],
)
def test_a_bad_difficulty_is_one_sentence(name, difficulty):
    with pytest.raises(UserError, match=name):
        get_task(name).resolve(difficulty)


@pytest.mark.parametrize(
    ("name", "difficulty"),
    [
        ("needle_multikey", {"needles": 10_000}),
        ("needle_multiquery", {"needles": 2, "queries": 3}),
        ("needle_multivalue", {"names": 10_000}),
        ("variable_tracking", {"hops": 10_000}),
        ("common_words", {"rare": 10_000}),
        ("frequent_words", {"words": 3}),
        ("key_value", {"pairs": 10_000}),
        ("few_shot", {"classes": 10_000}),
        ("few_shot", {"shots": 10_000}),
        ("arithmetic", {"holders": 1}),
        ("instructions", {"rules": 9}),
        ("questions", {"questions": 5, "needles": 4}),
        ("turns", {"questions": 1}),
        ("needle_paraphrased", {"needles": 10_000}),
        ("needle_mixed", {"needles": 10_000}),
        ("state_tracing", {"steps": 1}),
        ("arithmetic_chain", {"steps": 10_000}),
        ("list_recall", {"words": 1}),
        ("needle_decoded", {"decoded": 10}),
        ("needle_decoded", {"decoded": 5_000}),
        ("agent_log", {"observations": 5, "later": 5}),
    ],
)
def test_more_than_there_is_is_one_sentence(small_tokenizer, name, difficulty):
    with pytest.raises(UserError, match=name):
        get_task(name).generate(small_tokenizer, 2000, 0, 0, **difficulty)


def test_an_unknown_task_names_what_is_like_it_and_where_all_are_listed():
    with pytest.raises(UserError, match=r"variable_tracking.*kvlab tasks"):
        get_task("variable_trackin")
    with pytest.raises(UserError, match="no task called 'haystack'; `kvlab tasks` lists all"):
        get_task("haystack")


def test_every_task_of_the_plan_is_there():
    assert {name for name in TASKS if not name.startswith("ruler_")} == {
        "needle",
        "needle_multikey",
        "needle_multivalue",
        "needle_multiquery",
        "variable_tracking",
        "common_words",
        "frequent_words",
        "key_value",
        "copy",
        "few_shot",
        "arithmetic",
        "perplexity",
        "next_token_kl",
        "instructions",
        "rules_recited",
        "leakage",
        "secret",
        "questions",
        "turns",
        "needle_paraphrased",
        "needle_mixed",
        "state_tracing",
        "arithmetic_chain",
        "list_recall",
        "needle_decoded",
        "agent_log",
    }
