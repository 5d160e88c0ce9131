"""Answers and likelihoods under a cache, against plain transformers on the same weights."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

import kvlab
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.scoring.likelihood import compare
from tests.evaluation.one_cache import forced_log_probabilities, generate_answers


@pytest.fixture(scope="module")
def plain(tiny_folder):
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


def prompts(count, context=60, question=9, seed=0):
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 400, (count, context + question), generator=random).tolist()
    return [[0, *row[1:]] for row in ids]


def plain_answer(plain, tokenizer, prompt, new_tokens):
    ids = torch.tensor([prompt])
    out = plain.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()


@pytest.mark.parametrize("in_sight", [69, 68, 60])
@pytest.mark.parametrize("method", ["full", "h2o", "snapkv", "streaming-llm"])
def test_a_whole_budget_gives_plain_transformers_answers(tiny, plain, in_sight, method):
    batch = prompts(3)
    outcomes = generate_answers(tiny, batch, kvlab.make_cache(tiny, method, budget=1.0), in_sight, 12, None)
    assert [o.prediction for o in outcomes] == [plain_answer(plain, tiny.tokenizer, p, 12) for p in batch]


@pytest.mark.parametrize("in_sight", [69, 68, 60])
def test_a_batch_gives_what_its_prompts_give_alone(tiny, in_sight):
    batch = prompts(3, seed=4)
    together = generate_answers(tiny, batch, kvlab.make_cache(tiny, "h2o", budget=0.3), in_sight, 8, None)
    caches = [kvlab.make_cache(tiny, "h2o", budget=0.3) for _ in batch]
    alone = [generate_answers(tiny, [p], cache, in_sight, 8, None)[0] for p, cache in zip(batch, caches, strict=True)]
    assert [o.prediction for o in together] == [o.prediction for o in alone]
    assert [o.memory.slots for o in together] == pytest.approx([o.memory.slots for o in alone])
    assert [o.memory.live_bytes for o in together] == [o.memory.live_bytes for o in alone]


def test_out_of_sight_the_context_alone_sets_the_budget(tiny):
    [prompt] = prompts(1, context=100, question=20)
    aware, unaware = (
        generate_answers(tiny, [prompt], kvlab.make_cache(tiny, "streaming-llm", budget=0.5), mode, 2, None)[0].memory
        for mode in (120, 100)
    )
    assert aware.slots == pytest.approx(60, abs=2)
    assert unaware.slots == pytest.approx(50, abs=2)
    assert aware.logical_tokens == unaware.logical_tokens


def test_answers_end_at_the_stop_text(tiny):
    [prompt] = prompts(1, seed=9)
    cache = kvlab.make_cache(tiny, "full", budget=1.0)
    whole = generate_answers(tiny, [prompt], cache, 69, 40, None)[0]
    stop = whole.prediction[6:8]
    cache = kvlab.make_cache(tiny, "full", budget=1.0)
    cut = generate_answers(tiny, [prompt], cache, 69, 40, stop)[0]
    assert cut.prediction == whole.prediction.split(stop)[0].rstrip()
    assert cut.memory.logical_tokens < whole.memory.logical_tokens


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("\n 42.\nmore", "\n", "42."),
        (" a\nb ", None, "a\nb"),
        ("x\n\nQuestion: y", "\n\nQuestion", "x"),
        ("", "\n", ""),
    ],
)
def test_cutting_an_answer(text, stop, expected):
    assert Stops((stop,) if stop else ()).cut(text) == expected


def test_forced_text_costs_what_plain_transformers_says(tiny, plain):
    [prompt] = prompts(1, context=50, question=21, seed=2)
    prefix, forced = prompt[:50], prompt[50:]
    cache = kvlab.make_cache(tiny, "full", budget=1.0)
    found, outcome = forced_log_probabilities(tiny, prefix, forced, cache)
    with torch.no_grad():
        logits = plain(torch.tensor([prompt])).logits[0, 50:-1].float()
    expected = torch.log_softmax(logits, dim=-1)
    assert torch.allclose(found, expected, atol=1e-4)
    text = tiny.tokenizer.decode(forced[1:])
    measured = compare(outcome, found, expected, forced, len(text.encode()))
    nats = -expected.gather(1, torch.tensor(forced[1:])[:, None]).sum().item()
    assert measured.bits_per_byte == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-4)
    assert measured.kl == pytest.approx(0, abs=1e-6)
    assert measured.top1_agreement == 1


def test_kl_is_what_its_definition_says_and_grows_as_the_budget_shrinks(tiny):
    [prompt] = prompts(1, context=120, question=30, seed=3)
    prefix, forced = prompt[:120], prompt[120:]

    def predictions(method, budget):
        cache = kvlab.make_cache(tiny, method, budget=budget)
        return forced_log_probabilities(tiny, prefix, forced, cache)

    reference, _ = predictions("full", 1.0)
    kl = []
    for budget in (1.0, 0.5, 0.05):
        found, outcome = predictions("streaming-llm", budget)
        measured = compare(outcome, found, reference, forced, 100)
        direct = torch.nn.functional.kl_div(found, reference, log_target=True, reduction="batchmean").item()
        assert measured.kl == pytest.approx(max(direct, 0), abs=1e-6)
        kl.append(measured.kl)
    assert kl[0] < 1e-6 < kl[1] < kl[2]
