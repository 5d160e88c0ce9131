"""The shipped model: a plain, small folder that starts with BOS, reads from afar and rests on its first token."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from kvlab.core.assets import asset_path
from kvlab.models.info import mini
from kvlab.models.info.mini import ADJECTIVES, NAMES
from training.mini import measures, task_rows
from training.mini.checkpoint import export_model
from training.mini.presets import CPU_PHASES
from training.mini.text import Text, validation_text

FOLDER = asset_path("mini")


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(FOLDER).float().eval()


@pytest.fixture(scope="module")
def text() -> Text:
    return validation_text(asset_path("prompts/haystack"), AutoTokenizer.from_pretrained(FOLDER))


def test_the_folder_is_small_and_loads_fast() -> None:
    files = [path for path in FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 40e6
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {path.name for path in files}
    AutoModelForCausalLM.from_pretrained(FOLDER)  # the first call also imports the architecture
    started = time.perf_counter()
    AutoModelForCausalLM.from_pretrained(FOLDER)
    AutoTokenizer.from_pretrained(FOLDER)
    assert time.perf_counter() - started < 2


def test_it_is_a_plain_llama_with_grouped_queries(model: LlamaForCausalLM) -> None:
    config = model.config
    assert type(model) is LlamaForCausalLM
    assert config.num_hidden_layers >= 6
    assert config.head_dim >= 32
    assert config.num_key_value_heads >= 2
    assert config.num_attention_heads // config.num_key_value_heads >= 2


def test_every_text_starts_with_bos_and_survives_the_tokenizer(text: Text) -> None:
    tokenizer = text.tokenizer
    sample = "A queen’s number is 40917,\n\n  no?"
    ids = tokenizer(sample)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:]) == sample
    assert sum(piece.isdigit() for piece in tokenizer.tokenize(sample)) == 5


def test_each_name_is_one_token(text: Text) -> None:
    assert all(len(text.encode(f" {word}")) == 1 for word in NAMES + ADJECTIVES)


def test_a_needle_is_found_at_a_thousand_tokens(model: LlamaForCausalLM, text: Text) -> None:
    phase = replace(CPU_PHASES[-1], length=1024, needles=1)
    share = measures.recall(model, lambda rng: task_rows.needle_row(rng, text, phase, count=1), samples=12, seed=11)
    assert share >= 0.9


def test_generate_says_the_needle(model: LlamaForCausalLM, text: Text) -> None:
    book = text.tokenizer.decode(text.tokens[2000:2400].astype(np.int64))
    hidden = mini.needle_statement(mini.NEEDLE_PHRASINGS[0], "garden", "70613")
    query = mini.needle_query(mini.NEEDLE_PHRASINGS[0], "garden", "70613")
    inputs = text.tokenizer(f"{hidden} {book}{query.prompt}", return_tensors="pt")
    output = model.generate(input_ids=inputs["input_ids"], max_new_tokens=6, do_sample=False)
    said = text.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert said == query.answer


def test_there_are_induction_heads_and_a_sink(model: LlamaForCausalLM, text: Text) -> None:
    induction = measures.induction_scores(model, text.bos_token_id, rows=2)
    assert int((induction > 0.3).sum()) >= 2
    sinks = measures.sink_scores(model, text, windows=2)
    assert sinks.shape == induction.shape
    assert float(sinks.max()) > 0.3


def test_more_context_makes_text_easier(model: LlamaForCausalLM, text: Text) -> None:
    curve = measures.perplexity_by_context(model, text, (128, 1024), windows=8)
    assert curve[1024] < curve[128]


def test_an_export_says_what_the_model_says(model: LlamaForCausalLM, text: Text, tmp_path: Path) -> None:
    export_model(model, text.tokenizer, tmp_path, model.config.max_position_embeddings)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.from_numpy(text.tokens[None, :64].astype(np.int64))
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        got = again(input_ids=tokens).logits.float()
    assert float((expected.softmax(-1) - got.softmax(-1)).abs().max()) < 0.05
