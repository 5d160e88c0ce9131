"""Prompts are never longer than asked for and at most a word's tokens shorter, for any task, seed and length."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.tasks.draft import largest_fit
from kvlab.tasks.haystack import haystack
from kvlab.tasks.registry import TASKS, get_task
from kvlab.tasks.tokens import count_tokens, prompt_ids, text_ids

SEEDS = st.integers(0, 9_999_999)


def measured(tokenizer, sample):
    context, question = prompt_ids(tokenizer, sample)
    question = question + text_ids(tokenizer, sample.answer_start)
    forced = len(text_ids(tokenizer, sample.answers[0])) if sample.metric in ("kl", "bits_per_byte") else 0
    return len(context) + len(question) + forced


@cache
def longest_word(tokenizer):
    longest = sorted(haystack()[0], key=len)[-20:]
    return max(len(text_ids(tokenizer, word)) for word in longest)


def shortest(tokenizer, name, length):
    """The fewest tokens of a prompt: it ends within a word, or of RULER's within a sentence, needle or document."""
    return length - (longest_word(tokenizer) if not name.startswith("ruler_") else SENTENCE[tokenizer.vocab_size < 300])


SENTENCE = {False: 110, True: 180}  # the longest of RULER's lines in tokens, and in bytes


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(TASKS)), seed=SEEDS, index=st.integers(0, 1000), length=st.integers(800, 1400))
def test_length_is_met_and_never_exceeded(small_tokenizer, name, seed, index, length):
    sample = get_task(name).generate(small_tokenizer, length, seed, index)
    assert shortest(small_tokenizer, name, length) <= measured(small_tokenizer, sample) <= length
    assert sample.length == length


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(sorted(TASKS)), seed=SEEDS)
def test_length_holds_for_a_tokenizer_of_bytes(byte_tokenizer, name, seed):
    sample = get_task(name).generate(byte_tokenizer, 3000, seed, 0)
    assert shortest(byte_tokenizer, name, 3000) <= measured(byte_tokenizer, sample) <= 3000


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_length_that_cannot_hold_the_task_is_one_sentence(small_tokenizer, name):
    with pytest.raises(UserError, match=name):
        get_task(name).generate(small_tokenizer, 20, 0, 0)


def test_the_length_named_by_the_error_is_enough(small_tokenizer):
    task = get_task("key_value")
    with pytest.raises(UserError) as error:
        task.generate(small_tokenizer, 50, 0, 0)
    need = int(str(error.value).split("at least ")[1].split(",")[0])
    assert measured(small_tokenizer, task.generate(small_tokenizer, need + 20, 0, 0)) <= need + 20


def test_bos_is_counted_and_stands_first(small_tokenizer):
    context, question = prompt_ids(small_tokenizer, get_task("needle").generate(small_tokenizer, 300, 0, 0))
    assert context[0] == small_tokenizer.bos_token_id
    assert small_tokenizer.bos_token_id not in context[1:] + question
    assert count_tokens(small_tokenizer, "a b") == len(small_tokenizer("a b")["input_ids"])


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(-5, 200), st.integers(-10, 100))
def test_largest_fit_finds_the_largest(steps, limit, guess):
    sizes = [sum(steps[:count]) for count in range(len(steps) + 1)]
    expected = max((count for count, size in enumerate(sizes) if size <= limit), default=-1)
    assert largest_fit(lambda count: sizes[count] <= limit, len(steps), guess) == expected
