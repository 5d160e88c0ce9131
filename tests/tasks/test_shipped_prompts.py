"""What ships: the haystack's books, the sample prompts and their descriptions."""

from __future__ import annotations

import re

import pytest

from kvlab.core.assets import asset_path
from kvlab.core.errors import UserError
from kvlab.models.info.mini import VALIDATION_BOOKS, VALUE_DIGITS
from kvlab.tasks.haystack import haystack
from kvlab.tasks.shipped_samples import shipped_sample, shipped_samples
from kvlab.tasks.tokens import count_tokens

NEW_TOKENS = 64
WINDOW = 4096


def test_the_haystack_is_the_books_that_training_leaves_out():
    paths = sorted(asset_path("prompts/haystack").glob("*.txt"))
    assert tuple(path.stem for path in paths) == tuple(sorted(VALIDATION_BOOKS))
    readme = (asset_path("prompts") / "README.md").read_text(encoding="utf-8")
    assert all(path.name in readme for path in paths)


def test_the_prompts_take_at_most_a_megabyte_and_a_half():
    assert sum(path.stat().st_size for path in asset_path("prompts").rglob("*") if path.is_file()) <= 1.5e6
    assert not re.search("gutenberg", " ".join(haystack()[0]), re.IGNORECASE)


def test_samples_come_with_their_descriptions():
    samples = shipped_samples()
    assert [sample.name for sample in samples] == ["needle_in_a_story", "key_value_list", "dialogue", "chapter"]
    for sample in samples:
        assert sample.title
        assert sample.look_for.endswith(".")
        assert len(sample.description) < 120
        assert 0 < sample.suggested_budget < 1
        assert sample.max_new_tokens <= NEW_TOKENS


@pytest.mark.parametrize("sample", shipped_samples(), ids=lambda sample: sample.name)
def test_samples_fit_the_embedded_model_whatever_its_tokenizer_learned(small_tokenizer, sample):
    # A vocabulary of 600 makes longer prompts than mini's 4,096, so this bound is on the safe side.
    assert len(sample.text.split()) < 2500
    assert count_tokens(small_tokenizer, sample.text) < 1.6 * (WINDOW - NEW_TOKENS)


@pytest.mark.parametrize("name", ["needle_in_a_story", "key_value_list", "dialogue"])
def test_every_number_of_the_answer_stands_once_before_the_question(name):
    sample = shipped_sample(name)
    context, question = sample.text.rsplit("\nQuestion: ", 1)
    assert "\nAnswer:" in question
    for number in re.findall(rf"\d{{{VALUE_DIGITS}}}", sample.answer):
        assert context.count(number) == 1
        assert number not in question


def test_an_unknown_sample_names_the_known_ones():
    with pytest.raises(UserError, match="key_value_list"):
        shipped_sample("sonnet")
