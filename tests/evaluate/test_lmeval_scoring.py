"""Likelihoods under a compressed cache as lm-eval asks for them, against feeding token by token; without lm-eval."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from typer.testing import CliRunner

import kvlab
from kvlab.cli import commands
from kvlab.core.cache.replay import supports_token_by_token
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluate.results.store import ResultStore
from kvlab.evaluate.results.summary import summarize
from kvlab.lmeval.answers import Answering, SharedAnswers
from kvlab.lmeval.generation import GenerationRequest, generate_options, generate_texts
from kvlab.lmeval.journal import Journal, Measurement, request_key
from kvlab.lmeval.likelihood import (
    ContextGroup,
    check_simulated,
    equal_length_batches,
    fit_window,
    group_pairs,
    score_simulated,
)
from kvlab.lmeval.own_tasks import write_tasks
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.rows import CHOICES, GENERATION, ROLLING, Prompt, RowMaker, score_of, select_metric
from kvlab.lmeval.run import check_kinds
from tests.evaluate.lmeval_alone import scores_of, slowly, tokens
from tests.evaluate.one_cache import generate_answers

H2O = MethodChoice(method="h2o", budget=0.2)


def equal(found, expected):
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [total for total, _ in found] == pytest.approx([total for total, _ in expected], abs=2e-4)


@pytest.mark.parametrize(("method", "hold_back"), [("h2o", 1), ("keepkv", 4), ("adakv", 1), ("d2o", 2), ("kvzip", 1)])
def test_choices_that_share_a_cache_score_as_each_with_its_own(tiny, method, hold_back) -> None:
    contexts = [tokens(40, 1), tokens(40, 2)]
    choices = [(tokens(4, 3), tokens(2, 4)[1:]), (tokens(3, 5)[1:], tokens(6, 6)[1:], (7,))]
    asked = [ContextGroup(*pair, ()) for pair in zip(contexts, choices, strict=True)]
    found = scores_of(tiny, asked, kvlab.make_cache(tiny, method, 0.3), hold_back)
    for one, scored in zip(asked, found, strict=True):
        expected = [
            slowly(tiny, kvlab.make_cache(tiny, method, 0.3), one.context, choice, 40 - hold_back)
            for choice in one.continuations
        ]
        equal(scored.answers, expected)
        assert scored.in_sight == 40 - hold_back and scored.memory.logical_tokens == 40


def test_the_full_cache_scores_as_one_pass_without_a_cache(tiny) -> None:
    context, choices = tokens(30, 1), (tokens(5, 2), (9,))
    scored = scores_of(tiny, [ContextGroup(context, choices, ())], kvlab.make_cache(tiny, "full", 1.0), 1)[0]
    expected = []
    for choice in choices:
        with torch.inference_mode():
            logits = tiny.model(torch.tensor([[*context, *choice[:-1]]]), use_cache=False).logits[0]
        rows = torch.log_softmax(logits[-len(choice) :].double(), -1)
        picked = rows[torch.arange(len(choice)), torch.tensor(choice)]
        expected.append((float(picked.sum()), bool((rows.argmax(-1) == torch.tensor(choice)).all())))
    equal(scored.answers, expected)
    simulated = score_simulated(tiny, [ContextGroup(context, choices[:1], ())], kvlab.make_cache(tiny, "full", 1.0))[0]
    equal(simulated.answers, expected[:1])


def test_with_nothing_held_back_a_choice_of_one_token_shows_no_effect(tiny) -> None:
    asked = [ContextGroup(tokens(60, 1), ((5,), (9,)), ())]

    def scores(method, hold_back):
        return scores_of(tiny, asked, kvlab.make_cache(tiny, method, 0.2), hold_back)[0].answers

    full = [total for total, _ in scores("full", 1)]
    assert [total for total, _ in scores("h2o", 0)] == pytest.approx(full, abs=1e-5)
    assert max(abs(a - b) for (a, _), b in zip(scores("h2o", 1), full, strict=True)) > 0.01


@pytest.mark.parametrize("method", ["h2o", "tova", "zsmerge", "keepkv", "cam", "pyramid-pool", "d2o"])
def test_one_pass_is_feeding_token_by_token_from_the_first(tiny, method) -> None:
    context, continuation = tokens(36, 1), tokens(5, 2)[1:]
    cache, fed_tokens = kvlab.make_cache(tiny, method, 0.25), 39
    scored = score_simulated(tiny, [ContextGroup(context, (continuation,), ())], cache)[0]
    assert supports_token_by_token(cache) == (method != "d2o")  # its layers decide together
    slow = kvlab.make_cache(tiny, method, int(0.25 * fed_tokens))
    slow.settings.text_tokens = fed_tokens  # pyramids are cut to the length of the text
    equal(scored.answers, [slowly(tiny, slow, context, continuation, 0)])
    assert scored.memory.logical_tokens == fed_tokens
    assert scored.memory.slots == pytest.approx(slow.memory().live_slots) and scored.memory.slots < fed_tokens


def test_one_pass_with_a_window_is_attention_under_a_band(tiny) -> None:
    """A token attends to itself and the `slots` before it, as it is decided about after it attended."""
    slots, context, continuation = 6, tokens(24, 3), tokens(4, 4)[1:]
    cache = kvlab.make_cache(tiny, "window", slots)
    scored = score_simulated(tiny, [ContextGroup(context, (continuation,), ())], cache)[0]
    text = torch.tensor([[*context, *continuation[:-1]]])
    count = text.shape[1]
    distance = torch.arange(count)[:, None] - torch.arange(count)
    band = torch.where((distance >= 0) & (distance <= slots), 0.0, -1e9)[None, None]
    plain = kvlab.load_model(str(tiny.name), device="cpu").model
    plain.set_attn_implementation("eager")
    with torch.inference_mode():
        rows = torch.log_softmax(plain(text, attention_mask=band).logits[0, -3:].double(), -1)
    expected = float(rows[torch.arange(3), torch.tensor(continuation)].sum())
    assert scored.answers[0][0] == pytest.approx(expected, abs=2e-4)


def test_choices_of_own_tasks_leave_the_space_to_the_harness(tmp_path, tiny) -> None:
    """It puts its delimiter, one space, before each: with another the right label would not be the model's own word."""
    write_tasks(tmp_path, tiny.tokenizer, 520, 2)
    rows = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert row["choices"][row["label"]] == row["answer"] and all(one == one.strip() for one in row["choices"])
        assert row["text"] == row["text"].rstrip(" ")


def test_a_method_that_only_compresses_prompts_is_not_simulated() -> None:
    with pytest.raises(UserError, match="snapkv:decode=budget"):
        check_simulated(MethodChoice(method="snapkv", budget=0.2))
    check_simulated(MethodChoice(method="snapkv", budget=0.2, hyper_parameters={"decode": "budget"}))
    check_simulated(MethodChoice(method="full", budget=1.0))


@pytest.mark.parametrize("window", [5, 8, 20])
def test_a_context_loses_its_beginning_as_in_the_harness(window) -> None:
    context, continuation = list(range(10, 20)), [1, 2, 3]
    fed_to_the_model = (context + continuation)[-(window + 1) :][:-1]  # lm_eval/models/huggingface.py
    kept, same = fit_window(context, continuation, window)
    assert [*kept, *same[:-1]] == fed_to_the_model
    with pytest.raises(UserError, match="does not fit the model's context window of 2"):
        fit_window(context, continuation, 2)


def test_choices_of_one_context_stay_together_and_lengths_apart() -> None:
    pairs = [((1, 2), (5,)), ((1, 2, 3), (6,)), ((1, 2), (7, 8)), ((4, 4), (9,))]
    asked = group_pairs(pairs, same_text=False)
    assert [one.indices for one in asked] == [(0, 2), (1,), (3,)]
    assert [one.indices for one in group_pairs([*pairs, ((1, 2), (6,))], same_text=True)] == [(0, 4), (1,), (2,), (3,)]
    batches = list(equal_length_batches(asked, False, 8))
    assert [[len(one.context) for one in batch] for batch in batches] == [[3], [2, 2]]


def answering(tiny, journal, made, rows=1, **fields) -> Answering:
    request = LmEvalRequest(tasks=("any",), **fields)

    def make(choice):
        made.append(choice)
        return kvlab.make_cache(tiny, choice.method, choice.budget)

    return Answering(SharedAnswers(tiny, make, request, [H2O], [journal], 64, rows), 0)


@pytest.mark.parametrize("protocol", ["decode", "simulated"])
def test_answers_are_the_same_in_any_batch_and_none_is_made_twice(tiny, tmp_path, protocol) -> None:
    pairs = [(tokens(30, place // 2), tokens(2 + place % 3, 20 + place)[1:]) for place in range(4)]
    pairs += [(tokens(30, 9), (5, 7)), (tokens(30, 9), (5, 8))]  # of which the same tokens are fed
    keys = [request_key(CHOICES, [place]) for place in range(6)]
    journal, made = Journal(tmp_path, {"rows": 1}), []
    alone = answering(tiny, journal, made, protocol=protocol).likelihoods(keys, pairs)
    others = Journal(tmp_path, {"rows": 8})
    batched = answering(tiny, others, [], rows=8, protocol=protocol).likelihoods(keys, pairs)
    equal(batched, alone)
    lines = journal.path.read_text().splitlines()
    journal.close()
    journal.path.write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:20])  # killed while it wrote the last but one
    again, made = Journal(tmp_path, {"rows": 1}), []
    told = []
    resumed = answering(tiny, again, made, protocol=protocol)
    resumed.shared.report = lambda number, count: told.append(count)
    equal(resumed.likelihoods(keys, pairs), alone)
    assert 1 <= len(made) <= 2 and sum(told) == 6  # only what was not on disk
    assert Journal(tmp_path, {"rows": 1}).answers.keys() == set(keys)


def test_texts_are_those_of_an_evaluation_cut_at_any_stop(tiny) -> None:
    context = tokens(50, 8)
    one = GenerationRequest(context, ("zzz", "e"), 12, (), 0)
    (written,) = generate_texts(tiny, [one], kvlab.make_cache(tiny, "h2o", 0.3), 49)
    whole = generate_answers(tiny, [list(context)], kvlab.make_cache(tiny, "h2o", 0.3), 49, 12, None)[0]
    assert written.prediction.strip() == whole.prediction.split("e")[0].strip()
    assert 0 < written.prompt_seconds <= written.seconds
    assert written.memory.logical_tokens <= whole.memory.logical_tokens


def test_each_beam_continues_from_the_prefilled_context(tiny) -> None:
    asked = [GenerationRequest(tokens(40, seed), (), 12, (("num_beams", 3),), seed) for seed in range(2)]
    whole, held_back = (
        [one.prediction for one in generate_texts(tiny, asked, kvlab.make_cache(tiny, "full", 1.0), in_sight)]
        for in_sight in (40, 38)
    )
    assert whole == held_back
    greedy = [GenerationRequest(one.context, (), 12, (), one.index) for one in asked]
    assert whole != [one.prediction for one in generate_texts(tiny, greedy, kvlab.make_cache(tiny, "full", 1.0), 40)]


def test_settings_of_texts_that_would_be_ignored_are_refused() -> None:
    assert generate_options({"do_sample": False, "temperature": 0.0}) == (("do_sample", False),)
    assert generate_options({"temperature": 0.3, "do_sample": True}) == (("do_sample", True), ("temperature", 0.3))
    with pytest.raises(UserError, match="penalty_alpha"):
        generate_options({"penalty_alpha": 0.6})


def prompt(kind: str) -> Prompt:
    return Prompt("piqa", 3, kind, (("The cat sat", " down"), ("The cat sat", " up")))


def test_protocol_and_hold_back_are_in_the_rows_key() -> None:
    asked = [
        LmEvalRequest(tasks=("piqa",)),
        LmEvalRequest(tasks=("piqa",), hold_back=4),
        LmEvalRequest(tasks=("piqa",), protocol="simulated"),
        LmEvalRequest(tasks=("piqa",), num_fewshot=2),
        LmEvalRequest(tasks=("piqa",), metric="acc_norm"),
    ]
    identities = [prompt(CHOICES).identity(request) for request in asked]
    assert len(set(identities)) == len(asked)
    assert identities[0].task == "lm-eval:piqa" and json.loads(identities[0].difficulty)["hold_back"] == 1
    assert identities[2].task == "lm-eval:piqa, simulated" and "hold_back" not in identities[2].difficulty


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (CHOICES, {"hold_back": 0}, "--hold-back 0"),
        (ROLLING, {}, "use --protocol simulated"),
        (GENERATION, {"protocol": "simulated"}, "generates text"),
    ],
)
def test_what_a_protocol_does_not_have_is_refused(kind, fields, said) -> None:
    with pytest.raises(UserError, match=said):
        check_kinds(LmEvalRequest(tasks=("piqa",), **fields), [prompt(kind)])
    check_kinds(LmEvalRequest(tasks=("piqa",), hold_back=0), [prompt(GENERATION)])


SAMPLE = {
    "doc_id": 3, "filter": "none", "metrics": ["perplexity", "acc"], "perplexity": -2.5, "acc": 1.0, "target": 1,
    "arguments": [("The cat sat", " down"), ("The cat sat", " up")], "filtered_resps": [(-3.0, False), (-2.0, True)],
}  # fmt: skip


def test_a_metric_that_is_no_score_is_passed_over() -> None:
    better = {"perplexity": False, "acc": True}
    metric = select_metric("piqa", "", [SAMPLE], better)
    assert (metric.name, metric.filter) == ("acc", "none") and score_of(SAMPLE, metric) == 1
    with pytest.raises(UserError, match="--metric is one of acc"):
        select_metric("piqa", "f1", [SAMPLE], better)
    with pytest.raises(UserError, match="no score from 0 to 1"):
        select_metric("piqa", "", [SAMPLE | {"metrics": ["perplexity"]}], better)
    rolling = {"filter": "none", "metrics": ["bits_per_byte"], "bits_per_byte": (-8.0, 4)}
    assert score_of(rolling, select_metric("wikitext", "", [rolling], {})) == pytest.approx(8 / 4 / 0.6931471805599453)


def test_rows_are_read_as_any_evaluations(tmp_path) -> None:
    """Into the store and through the summary: kept, bytes and the paired difference come out."""
    request, found = LmEvalRequest(tasks=("piqa",)), {}
    one = prompt(CHOICES)
    for choice, slots in ((MethodChoice(method="full", budget=1.0), 50.0), (H2O, 10.0)):
        for arguments in one.requests:
            measured = Measurement(52, 49, slots, 50, int(slots) * 8, int(slots) * 9, 0.5, 0.25, 1)
            found[request_key(CHOICES, arguments)] = ([-1.0, True], measured)
        settings = {"variant": "x"}
        made_by = {"model": "tiny", "model_digest": "d"}
        score = {"acc": 1.0 if choice.method == "full" else 0.0}
        metric = select_metric("piqa", "", [SAMPLE], {})
        row = RowMaker(request, choice, settings, made_by).row(choice.label, one, SAMPLE | score, metric, found)
        assert row["seconds"] == 1.0 and row["tokens_in_sight"] == 49 and row["prediction"] == "up"
        with ResultStore.opened(tmp_path) as store:
            store.append([row])
    summary = summarize(ResultStore(tmp_path).frame()).set_index("method")
    assert summary.loc["h2o", "difference"] == -1 and summary.loc["h2o", "kept"] == pytest.approx(0.2)
    assert summary.loc["h2o", "bytes"] == pytest.approx(0.2) and summary.loc["full", "task"] == "lm-eval:piqa"


def test_without_the_package_the_command_says_how_to_get_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = CliRunner().invoke(commands, ["lm-eval", "--out", str(tmp_path), "--tasks", "piqa"])
    assert isinstance(found.exception, UserError) and "pip install" in str(found.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "value"),
    [("--protocol", "both"), ("--limit", "0"), ("--tasks", ","), ("--hold-back", "-1"), ("--methods", "nobody")],
)
def test_bad_options_are_one_sentence_before_anything_is_looked_for(tmp_path, option, value) -> None:
    given = {"--out": str(tmp_path / "out"), "--tasks": "piqa"} | {option: value}
    found = CliRunner().invoke(commands, ["lm-eval", *[word for pair in given.items() for word in pair]])
    assert isinstance(found.exception, UserError), found.output
    said = str(found.exception)
    assert "\n" not in said and said.endswith(".") and (value in said or option in said), said
    assert not (tmp_path / "out").exists()
