"""The right answer really stands in the context, exactly as often as the task says, and follows from it alone."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.evaluation.scoring.metrics import score
from kvlab.models.info import mini
from kvlab.tasks.registry import TASKS, get_task

SEEDS = st.integers(0, 9_999_999)
FEW = settings(max_examples=12, deadline=None)


def made(tokenizer, name, seed, length=900, **difficulty):
    return get_task(name).generate(tokenizer, length, seed, 0, **difficulty)


@FEW
@given(seed=SEEDS)
@pytest.mark.parametrize("name", ["needle", "needle_multikey", "needle_multivalue", "needle_multiquery"])
def test_every_needle_stands_once_and_only_needles_hold_the_answers(small_tokenizer, name, seed):
    sample = made(small_tokenizer, name, seed)
    statements = sample.meta["statements"]
    assert [sample.context.count(statement) for statement in statements] == [1] * len(statements)
    for answer in sample.answers:
        assert sample.context.count(answer) == 1
        assert sum(answer in statement for statement in statements) == 1
        assert answer not in sample.question


@FEW
@given(seed=SEEDS, needles=st.integers(1, 12))
def test_multikey_has_as_many_needles_as_asked_for_and_asks_for_one(small_tokenizer, seed, needles):
    sample = made(small_tokenizer, "needle_multikey", seed, needles=needles)
    assert len(sample.meta["statements"]) == needles
    kind = next(k for k in mini.NEEDLE_PHRASINGS if matches(k.question, sample.question))
    name = matches(kind.question, sample.question)
    assert sample.context.count(kind.statement.format(name=name, value=sample.answers[0])) == 1


@FEW
@given(seed=SEEDS, decoded=st.integers(96, 400))
def test_the_decoded_needle_is_in_the_text_that_enters_later_alone(small_tokenizer, seed, decoded):
    sample = made(small_tokenizer, "needle_decoded", seed, decoded=decoded)
    (statement,) = sample.meta["statements"]
    (answer,) = sample.answers
    assert sample.decoded.count(statement) == 1 == sample.decoded.count(answer) and answer in statement
    assert answer not in sample.context + sample.question
    entered = len(small_tokenizer(sample.decoded, add_special_tokens=False)["input_ids"])
    assert decoded - 40 < entered <= decoded
    assert sample.compresses_context_alone and get_task("needle_decoded").context_alone


@FEW
@given(seed=SEEDS, observations=st.integers(2, 20), data=st.data())
def test_the_observation_asked_for_is_so_many_steps_ago(small_tokenizer, seed, observations, data):
    later = data.draw(st.integers(1, observations - 1))
    sizes = {"observations": observations, "later": later}
    sample = made(small_tokenizer, "agent_log", seed, **sizes)
    lines = sample.context.split("\n")
    steps = [line for line in lines if re.match(r"\d+\. [a-z]+\([a-z]+\): ", line)]
    assert [int(line.split(".")[0]) for line in steps] == list(range(1, observations + 1))
    holding = [line for line in steps if sample.answers[0] in line]
    assert holding == [steps[-1 - later]] and sample.meta["statements"][0] in holding[0]
    name = re.search(r"\(([a-z]+)\)", holding[0]).group(1)
    assert re.search(rf"\b{name}\b", sample.question)
    apart = made(small_tokenizer, "agent_log", seed, enters="decoding", **sizes)
    assert apart.context + apart.decoded == sample.context and apart.question == sample.question
    assert len(re.findall(r"(?m)^\d+\. ", apart.decoded)) == later
    assert score(sample.metric, f"{sample.answers[0]}.", sample.answers) == 1
    assert score(sample.metric, f"{sample.answers[0]} and more", sample.answers) == 0


def matches(template, text):
    found = re.search(re.escape(template).replace(r"\{name\}", r"(\w+)"), text)
    return found and found.group(1)


@FEW
@given(seed=SEEDS, values=st.integers(2, 5), names=st.integers(1, 3))
def test_multivalue_answers_are_all_values_of_the_name_in_order(small_tokenizer, seed, values, names):
    sample = made(small_tokenizer, "needle_multivalue", seed, values=values, names=names)
    name = matches("What are all the numbers of the {name}?", sample.question)
    own = [s for s in sample.meta["statements"] if re.search(rf"\b{name}\b", s)]
    assert [re.search(r"\d{5}", s).group() for s in own] == sample.answers
    assert len(sample.answers) == values
    assert len(sample.meta["statements"]) == values * names
    assert [sample.context.index(answer) for answer in sample.answers] == sorted(
        map(sample.context.index, sample.answers)
    )


@FEW
@given(seed=SEEDS, hops=st.integers(1, 5), chains=st.integers(1, 3))
def test_variables_follow_from_the_assignments_in_the_context(small_tokenizer, seed, hops, chains):
    sample = made(small_tokenizer, "variable_tracking", seed, hops=hops, chains=chains)
    holds = {}
    for source, name in re.findall(r"(\w+) -> VAR (\w+)\.", sample.context):
        assert name not in holds
        holds[name] = holds.get(source, source)
    value = re.search(r"hold the value (\d+)", sample.question).group(1)
    assert [name for name, held in holds.items() if held == value] == sample.answers
    assert len(sample.answers) == hops + 1
    assert len(holds) == chains * (hops + 1)


@FEW
@given(seed=SEEDS)
@pytest.mark.parametrize("name", ["common_words", "frequent_words"])
def test_the_words_asked_for_are_the_most_common_of_the_list(small_tokenizer, name, seed):
    sample = made(small_tokenizer, name, seed)
    assert sample.context.count(sample.meta["block"]) == 1
    counts = Counter(sample.meta["block"].removeprefix("Words:").split())
    assert counts == sample.meta["counts"]
    top = counts.most_common(4)
    assert [word for word, _ in top[:3]] == sample.answers
    assert len({count for _, count in top}) == 4


@FEW
@given(seed=SEEDS, pairs=st.integers(1, 60))
def test_the_asked_key_and_its_value_stand_once(small_tokenizer, seed, pairs):
    sample = made(small_tokenizer, "key_value", seed, length=1300, pairs=pairs)
    key = re.search(r"Which value has (\w+)\?", sample.question).group(1)
    assert sample.context.count(f" {key}: {sample.answers[0]}\n") == 1
    assert sample.context.count(sample.answers[0]) == 1
    assert len(re.findall(r"^ \w+: \d{5}$", sample.context, re.MULTILINE)) == pairs


@FEW
@given(seed=SEEDS, words=st.integers(1, 60))
def test_the_passage_to_copy_stands_first(small_tokenizer, seed, words):
    sample = made(small_tokenizer, "copy", seed, words=words)
    passage = sample.context.removeprefix("Text: ").split("\n")[0]
    given = sample.question.partition("Answer:")[2].strip()
    # The question gives the first words away; the rest is to be copied.
    assert f"{given} {sample.answers[0]}".strip() == passage
    assert len(passage.split()) == words
    assert len(given.split()) == min(3, words - 1)


@FEW
@given(seed=SEEDS, classes=st.integers(1, 8), shots=st.integers(1, 5))
def test_every_class_is_shown_as_often_as_asked_for(small_tokenizer, seed, classes, shots):
    sample = made(small_tokenizer, "few_shot", seed, classes=classes, shots=shots)
    examples = re.findall(r"^ (\w+) (\w+) -> (\w+)$", sample.context, re.MULTILINE)
    labels = {}
    for _, noun, label in examples:
        assert labels.setdefault(noun, label) == label
    assert set(Counter(noun for _, noun, _ in examples).values()) == {shots}
    assert len(labels) == classes
    noun = re.search(r"Answer: \w+ (\w+) ->$", sample.question).group(1)
    assert [labels[noun]] == sample.answers


@FEW
@given(seed=SEEDS, holders=st.integers(2, 6))
def test_the_sum_follows_from_the_statements(small_tokenizer, seed, holders):
    sample = made(small_tokenizer, "arithmetic", seed, holders=holders)
    coins = {name: int(count) for name, count in re.findall(r"The (\w+) has (\d+) coins\.", sample.context)}
    first, second = re.search(r"have the (\w+) and the (\w+)\?", sample.question).groups()
    assert len(coins) == holders
    assert sample.answers == [str(coins[first] + coins[second])]


@FEW
@given(seed=SEEDS, continuation=st.integers(2, 200))
@pytest.mark.parametrize("name", ["perplexity", "next_token_kl"])
def test_the_continuation_is_the_end_of_the_text(small_tokenizer, name, seed, continuation):
    sample = made(small_tokenizer, name, seed, continuation=continuation)
    forced = small_tokenizer(sample.answers[0], add_special_tokens=False)["input_ids"]
    assert abs(len(forced) - continuation) <= 2
    assert sample.question == ""


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_answer_fits_into_the_tokens_allowed(small_tokenizer, name):
    sample = made(small_tokenizer, name, 3)
    if sample.question:
        # Of several questions each has its own answer; a refusal or a rule is no text that is repeated.
        answers = [*sample.answers[:1]] if sample.further or sample.metric.endswith("rules") else sample.answers
        answer = ", ".join(answers)
        assert len(small_tokenizer(answer, add_special_tokens=False)["input_ids"]) < sample.max_new_tokens
        assert sample.question.startswith("\nQuestion: ") or name.startswith("ruler_")
        assert not sample.question.endswith(" ")
