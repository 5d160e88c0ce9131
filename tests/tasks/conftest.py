"""Two tokenizers made on the spot: bytes alone, and a small BPE learned on one of the shipped books."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvlab.core.assets import asset_path
from training.mini.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={"<bos>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


@pytest.fixture(scope="session")
def small_tokenizer() -> PreTrainedTokenizerFast:
    text = (asset_path("prompts/haystack") / "alice_in_wonderland.txt").read_text(encoding="utf-8")
    return train_tokenizer([text[:60_000]], vocabulary_size=600)
