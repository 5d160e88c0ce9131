"""RULER's tasks in its own wording: what is asked follows from the text, and the prompt is RULER's."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.tasks.loaders.ruler import ruler_metric
from kvlab.tasks.registry import get_task
from kvlab.tasks.ruler import RULER_TASKS

SEEDS = st.integers(0, 9_999_999)
FEW = settings(max_examples=5, deadline=None)
NEEDLES = sorted(task.name for task in RULER_TASKS if "niah" in task.name)
# RULER's synthetic.yaml: (needles in the haystack, kind of the values, answers)
SETTINGS = {
    "niah_single_1": ("numbers", 1), "niah_single_2": ("numbers", 1), "niah_single_3": ("uuids", 1),
    "niah_multikey_1": ("numbers", 1), "niah_multikey_2": ("numbers", 1), "niah_multikey_3": ("uuids", 1),
    "niah_multivalue": ("numbers", 4), "niah_multiquery": ("numbers", 4),
}  # fmt: skip


def made(tokenizer, name, seed, length=900, **difficulty):
    return get_task(name).generate(tokenizer, length, seed, 0, **difficulty)


def test_there_are_thirteen_with_rulers_names_and_metrics(small_tokenizer):
    assert len(RULER_TASKS) == 13 == len({task.ruler for task in RULER_TASKS})
    for task in RULER_TASKS:
        sample = made(small_tokenizer, task.name, 1)
        assert task.name == f"ruler_{task.ruler}" and sample.metric == ruler_metric(task.ruler)
        text = sample.context + sample.question + sample.answer_start
        last = text[text.rstrip().rfind("\n") :]
        assert last == (sample.question + sample.answer_start).replace("\n\n", "\n")[-len(last) :], "RULER's last line"


def test_the_prompt_is_that_of_ruler(small_tokenizer):
    sample = made(small_tokenizer, "ruler_niah_multivalue", 3)
    key = re.search(r"for ([a-z-]+) is:", sample.meta["statements"][0]).group(1)
    assert sample.context.startswith(
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you "
        "about the numbers afterwards.\n"
    )
    assert sample.question == f"\nWhat are all the special magic numbers for {key} mentioned in the provided text?"
    assert sample.answer_start == f" The special magic numbers for {key} mentioned in the provided text are"
    single = made(small_tokenizer, "ruler_niah_single_3", 3)
    assert single.context.startswith("A special magic uuid is hidden within the following text.")
    assert single.question.startswith("\nWhat is the special magic uuid for ") and single.answer_start.endswith(
        "text is"
    )


@FEW
@given(seed=SEEDS)
@pytest.mark.parametrize("name", NEEDLES)
def test_needles_hold_the_values_of_the_asked_keys(small_tokenizer, name, seed):
    sample = made(small_tokenizer, name, seed)
    kind, answers = SETTINGS[name.removeprefix("ruler_")]
    found = re.findall(rf"One of the special magic {kind} for (\S+) is: (\S+)\.", sample.context)
    asked = re.search(r"for (.*) mentioned", sample.question).group(1).replace(", and ", ", ").split(", ")
    values = {key: [value for one, value in found if one == key] for key in asked}
    assert sorted(value for key in asked for value in values[key]) == sorted(sample.answers)
    assert len(sample.answers) == answers and all(len(one) in (7, 36) for one in sample.answers)
    assert all(statement in sample.context for statement in sample.meta["statements"])
    others = len(found) - len(sample.meta["statements"])
    assert (others > 5) == (name in ("ruler_niah_multikey_2", "ruler_niah_multikey_3"))


@FEW
@given(seed=SEEDS, hops=st.integers(1, 6))
def test_all_variables_of_the_chain_are_asked_for(small_tokenizer, seed, hops):
    sample = made(small_tokenizer, "ruler_vt", seed, hops=hops)
    holds = {}
    for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", sample.context):
        holds[name] = holds.get(source, source)
    value = re.search(r"assigned the value (\d+) in", sample.question).group(1)
    assert [name for name, held in holds.items() if held == value] == sample.answers
    assert f"{hops + 1} variables" in sample.answer_start


@FEW
@given(seed=SEEDS, times=st.integers(2, 8))
def test_the_ten_words_of_the_list_are_the_most_common(small_tokenizer, seed, times):
    sample = made(small_tokenizer, "ruler_cwe", seed, times=times)
    listed = re.findall(r"(\d+)\. (\w+)", sample.context)
    assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
    counts = Counter(word for _, word in listed)
    assert {word: counts[word] for word in sample.answers} == dict.fromkeys(sample.answers, times)
    assert set(counts.values()) <= {1, times} and len(sample.answers) == 10


@FEW
@given(seed=SEEDS)
def test_the_three_coded_words_are_the_most_frequent(small_tokenizer, seed):
    sample = made(small_tokenizer, "ruler_fwe", seed)
    words = sample.context.rpartition("coded words. ")[2].split()
    counts = Counter(word for word in words if word != "....")
    assert [word for word, _ in counts.most_common(3)] == sample.answers
    assert words.count("....") > counts[sample.answers[0]] // 2


@FEW
@given(seed=SEEDS)
@pytest.mark.parametrize("name", ["ruler_qa_1", "ruler_qa_2"])
def test_the_question_is_answered_by_its_documents(small_tokenizer, name, seed):
    sample = made(small_tokenizer, name, seed)
    numbers = re.findall(r"^Document (\d+):$", sample.context, re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))
    born = dict(re.findall(r"^(\w+ \w+) was born in ([\w ]+?) and worked", sample.context, re.MULTILINE))
    person = re.search(r"was (\w+ \w+) born\?", sample.question)
    if name == "ruler_qa_2":
        ship = re.search(r"owner of the (ship \w+) born", sample.question).group(1)
        person = re.search(rf"The {ship} belonged to (\w+ \w+)\.", sample.context)
    assert sample.answers == [born[person.group(1)]]
