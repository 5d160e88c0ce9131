"""Penalties and other processors of a checkpoint: noted where they are ignored, and applied as `generate` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kvlab
from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.engine.forward import ProcessedArgmax, chooser, end_ids, prefill
from kvlab.models.load import LoadedModel
from kvlab.requests.compare import CompareRequest
from kvlab.requests.generation_settings import PROCESSORS, generation_notes
from kvlab.trace import Run, open_run
from kvlab.trace.record import repeat_request

PROMPT = "The captain wrote that the lamp is red, and the lamp is red, and the lamp is red, and she wrote that the lamp"
NEW = 12
# One for each setting that `generate` makes a processor of; TOP is what plain greedy decoding writes first.
TOP, EOS = "the first token", "the end token"
SETTINGS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[TOP]]},
    {"sequence_bias": [[[TOP], -9.0]]},
    {"suppress_tokens": [TOP]},
    {"begin_suppress_tokens": [TOP]},
    {"min_new_tokens": 9, "sequence_bias": [[[EOS], 30.0]]},
    {"min_length": 60, "sequence_bias": [[[EOS], 30.0]]},
    {"forced_eos_token_id": EOS},
    {"exponential_decay_length_penalty": [2, 1.8]},
    {"guidance_scale": 1.5},
    {"watermarking_config": {"greenlist_ratio": 0.25, "bias": 4.0}},
    {"remove_invalid_values": True},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "do_sample": True, "temperature": 0.5, "top_k": 5},
]


def test_every_setting_is_tried():
    assert {name for settings in SETTINGS for name in settings if name in PROCESSORS} == {*PROCESSORS}


@pytest.fixture
def with_settings(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], LoadedModel]:
    """The tiny model under other generation settings, of which names of tokens are replaced by ids."""

    def given(settings: dict[str, Any]) -> LoadedModel:
        ids = tiny.encode(PROMPT)
        first = int(tiny.model(ids).logits[0, -1].argmax())
        known = {TOP: first, EOS: tiny.tokenizer.eos_token_id}
        config = type(tiny.model.generation_config)(eos_token_id=known[EOS], pad_token_id=1)
        config.update(**{name: _named(value, known) for name, value in settings.items()})
        monkeypatch.setattr(tiny.model, "generation_config", config)
        return tiny

    return given


def _named(value: Any, known: dict[str, int]) -> Any:
    if isinstance(value, list):
        return [_named(one, known) for one in value]
    return known.get(value, value) if isinstance(value, str) else value


def run_of(loaded: LoadedModel, root: Path, treated: str, method: str = "h2o") -> Run:
    choice = MethodChoice(method=method, budget=0.4)
    request = CompareRequest(
        prompt=PROMPT, choices=(choice,), max_new_tokens=NEW, level="off", generation_config=treated
    )
    return open_run(compare(request, root, loaded=loaded)[0])


def own_ids(run: Run, phase: str = "free") -> list[int]:
    tokens = run.tokens
    return tokens[tokens["phase"] == phase]["id"].tolist()


def generated(loaded: LoadedModel, method: str, budget: float) -> list[int]:
    """What transformers' `generate` writes with a cache of the method and the checkpoint's own settings."""
    ids = loaded.encode(PROMPT)
    cache = kvlab.make_cache(loaded, method, budget=budget)
    with torch.inference_mode():
        whole = loaded.model.generate(ids, past_key_values=cache, max_new_tokens=NEW, do_sample=False)
    return whole[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "+".join(settings))
def test_honoured_it_writes_what_generate_writes_token_for_token(
    with_settings: Callable[[dict[str, Any]], LoadedModel], settings: dict[str, Any]
):
    loaded = with_settings(settings)
    ids = loaded.encode(PROMPT)
    for method, budget in (("full", 1.0), ("h2o", 0.4), ("keepkv", 0.4)):
        cache = kvlab.make_cache(loaded, method, budget=budget)
        row = prefill(loaded, cache, ids)
        choose = chooser(loaded, ids, NEW, "honour")
        own: list[int] = []
        ends = end_ids(loaded)
        while len(own) < NEW and not (own and own[-1] in ends):
            own.append(int(choose(row)))
            with torch.inference_mode():
                row = loaded.model(torch.tensor([[own[-1]]]), past_key_values=cache).logits[0, -1].float()
        assert own == generated(loaded, method, budget)


def test_a_run_is_written_as_generate_writes(with_settings: Callable[[dict[str, Any]], LoadedModel], tmp_path: Path):
    loaded = with_settings({"repetition_penalty": 1.7})
    run = run_of(loaded, tmp_path, "honour")
    assert own_ids(run, "forced") == generated(loaded, "full", 1.0)
    assert own_ids(run) == generated(loaded, "h2o", 0.4)


def test_ignored_the_text_is_plain_greedy_and_the_run_says_so(
    with_settings: Callable[[dict[str, Any]], LoadedModel], tmp_path: Path
):
    plain = own_ids(run_of(with_settings({}), tmp_path / "plain", "ignore"))
    loaded = with_settings({"repetition_penalty": 1.7, "suppress_tokens": [TOP]})
    ignored, honoured = (run_of(loaded, tmp_path / treated, treated) for treated in ("ignore", "honour"))
    assert own_ids(ignored) == plain != own_ids(honoured)
    for run, word in ((ignored, "--generation-config honour"), (honoured, "is chosen under them")):
        (note,) = run.record.notes
        assert "repetition_penalty 1.7" in note and "suppress_tokens" in note and word in note
    assert honoured.record.generation_config == "honour"
    again = repeat_request(honoured.record, MethodChoice(method="h2o"), "again")
    assert again.generation_config == "honour"


def test_divergences_are_of_the_model_and_not_of_the_processors(
    with_settings: Callable[[dict[str, Any]], LoadedModel], tmp_path: Path
):
    full = run_of(with_settings({"suppress_tokens": [TOP]}), tmp_path, "honour", "full")
    forced = full.tokens[full.tokens["phase"] == "forced"]
    assert (forced["kl"] < 1e-5).all() and forced["logprob"].between(-50, 0).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, []),
        ({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "temperature": 0.7}, []),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, ["temperature 0.7, top_p 0.9"]),
        ({"num_beams": 4}, ["num_beams 4"]),
        ({"no_repeat_ngram_size": 3, "do_sample": True}, ["no_repeat_ngram_size 3", "do_sample"]),
        ({"bad_words_ids": [[number] for number in range(999)]}, ["..."]),
    ],
)
def test_notes_name_what_is_set_and_nothing_else(settings: dict[str, Any], words: list[str]):
    notes = generation_notes(settings)
    assert len(notes) == len(words)
    for note, word in zip(notes, words, strict=True):
        assert word in note and len(note) < 300


def test_processors_are_those_of_generate(with_settings: Callable[[dict[str, Any]], LoadedModel]):
    loaded = with_settings({"repetition_penalty": 1.3, "do_sample": True, "temperature": 0.2})
    choose = chooser(loaded, loaded.encode(PROMPT), NEW, "honour")
    assert isinstance(choose, ProcessedArgmax)
    names = [type(one).__name__ for one in choose.processors]
    assert names == ["RepetitionPenaltyLogitsProcessor"]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.3}])
def test_stop_strings_end_a_text_where_generate_ends_it(
    with_settings: Callable[[dict[str, Any]], LoadedModel], tmp_path: Path, length: int, more: dict[str, Any]
):
    plain = generated(with_settings(more), "h2o", 0.4)
    stop = with_settings(more).tokenizer.decode(plain[4 : 4 + length])
    loaded = with_settings({**more, "stop_strings": [stop]})
    ids = loaded.encode(PROMPT)
    with torch.inference_mode():
        cache = kvlab.make_cache(loaded, "h2o", budget=0.4)
        options = {"past_key_values": cache, "max_new_tokens": NEW, "do_sample": False, "tokenizer": loaded.tokenizer}
        written = loaded.model.generate(ids, **options)[0, ids.shape[1] :].tolist()
    run, ignored = (run_of(loaded, tmp_path / treated, treated) for treated in ("honour", "ignore"))
    assert own_ids(run) == written and len(written) < NEW
    assert len(own_ids(ignored)) > len(written) or ignored.record.free_text.count(stop)
    assert all("stop_strings" in one.record.notes[0] for one in (run, ignored))
