"""Answers for lm-eval under several choices that read their contexts together, against one choice alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import kvlab
from kvlab.core.choice import MethodChoice
from kvlab.evaluate.shared_prompt import SharedPrompt
from kvlab.lmeval.answers import Answering, SharedAnswers
from kvlab.lmeval.generation import GenerationRequest, generate_greedily, generate_texts
from kvlab.lmeval.journal import Journal, request_key
from kvlab.lmeval.likelihood import ContextGroup, score_decoded
from kvlab.lmeval.request import LmEvalRequest
from kvlab.models.load import prepare
from tests.evaluate.lmeval_alone import scores_of, slowly, tokens
from tests.families import cache_for, tiny_model

METHODS = ("full", "h2o", "keepkv", "snapkv", "adakv", "d2o", "kvzip", "keydiff")
CHOICES = [MethodChoice(method=name, budget=0.3) for name in ("h2o", "keepkv", "snapkv")]


def caches(lab):
    blocks = {"keydiff": {"block": 16}}
    return [kvlab.make_cache(lab, name, 1.0 if name == "full" else 0.3, **blocks.get(name, {})) for name in METHODS]


@pytest.fixture
def reads(monkeypatch):
    """The number of caches of each shared reading of contexts."""
    found = []
    read = SharedPrompt.read

    def counted(shared):
        found.append(len(shared.branches))
        return read(shared)

    monkeypatch.setattr(SharedPrompt, "read", counted)
    return found


@pytest.mark.parametrize("hold_back", [0, 1, 3])
def test_scores_of_caches_that_read_together_are_those_of_each_alone(tiny, reads, hold_back) -> None:
    groups = [
        ContextGroup(tokens(40, 1), (tokens(4, 3), (5,)), (0, 1)),
        ContextGroup(tokens(40, 2), ((7,), tokens(3, 4), tokens(2, 6)), (2, 3, 4)),
    ]
    together = score_decoded(tiny, groups, caches(tiny), hold_back)
    assert sorted(reads) == [1, len(METHODS) - 1]  # keydiff compresses within the pass over the prompt
    for found, cache in zip(together, caches(tiny), strict=True):
        for one, alone in zip(found, scores_of(tiny, groups, cache, hold_back), strict=True):
            assert [greedy for _, greedy in one.answers] == [greedy for _, greedy in alone.answers]
            assert [x for x, _ in one.answers] == pytest.approx([x for x, _ in alone.answers], abs=2e-4)
            assert one.memory == alone.memory and one.in_sight == alone.in_sight == 40 - hold_back
            assert one.seconds > one.prompt_seconds > 0


@pytest.mark.parametrize("family", ["gemma2", "qwen3-next", "lfm2", "falcon-h1"])
def test_layers_that_are_not_compressed_are_copied_for_each_continuation(family) -> None:
    """Windows, recurrent states beside attention, and both in one layer, against each continuation alone."""
    model = prepare(tiny_model(family))
    lab = SimpleNamespace(model=model, tokenizer=None, name=family)
    groups = [
        ContextGroup(few_tokens(24, seed), (few_tokens(3, 5 + seed), (5,), few_tokens(2, 7 + seed)), (0, 1, 2))
        for seed in range(2)
    ]
    methods = ("full", "h2o", "tova")

    def make(method):
        return cache_for(model, method, 1.0 if method == "full" else 0.4)

    together = score_decoded(lab, groups, [make(method) for method in methods], 2)
    for method, found in zip(methods, together, strict=True):
        for group, scored in zip(groups, found, strict=True):
            expected = [slowly(lab, make(method), group.context, one, 22) for one in group.continuations]
            assert near(list(scored.answers), expected)


def few_tokens(count: int, seed: int) -> tuple[int, ...]:
    """Of the small vocabulary that these models have."""
    return tuple(token % 90 + 2 for token in tokens(count, seed))


def requests(*contexts, until=("e", "", "q z"), options=(), most=12):
    return [GenerationRequest(context, until, most, options, index) for index, context in enumerate(contexts)]


@pytest.mark.parametrize(("hold_back", "until"), [(0, ("e", "", "th")), (2, ())])
def test_texts_that_are_written_together_are_those_of_generate(tiny, reads, hold_back, until) -> None:
    asked = requests(tokens(40, 1), tokens(40, 2), tokens(40, 5), until=until)
    together = generate_greedily(tiny, asked, caches(tiny), 40 - hold_back)
    assert sorted(reads) == [1, len(METHODS) - 1]
    lengths = set()
    for number, found in enumerate(together):
        for request, written in zip(asked, found, strict=True):
            (alone,) = generate_texts(tiny, [request], caches(tiny)[number], 40 - hold_back)
            assert written.prediction == alone.prediction
            assert written.memory.logical_tokens == alone.memory.logical_tokens
            assert written.memory.slots == pytest.approx(alone.memory.slots, rel=0.05)
            assert written.seconds > written.prompt_seconds > 0
            lengths.add(written.memory.logical_tokens)
    assert len(lengths) > 1  # rows left the batch at different times


def broken(cache):
    """The cache with a last layer whose attention fails once the prompt is read."""
    layer = cache.compressed_layers()[-1]
    attend = layer.attend

    def fail(query, *given):
        if query.shape[2] == 1:
            raise ZeroDivisionError("of this method")
        return attend(query, *given)

    layer.attend = fail
    return cache


def answers(tiny, folder, choices=CHOICES, fails=(), rows=2, **fields) -> SharedAnswers:
    def make(choice):
        cache = kvlab.make_cache(tiny, choice.method, choice.budget)
        return broken(cache) if choice.method in fails else cache

    journals = [Journal(folder, {"choice": choice.method}) for choice in choices]
    return SharedAnswers(tiny, make, LmEvalRequest(tasks=("any",), **fields), choices, journals, 64, rows)


def some_pairs():
    pairs = [(tokens(30, 1 + place // 2), tokens(2 + place % 3, 20 + place)[1:]) for place in range(6)]
    return [request_key("loglikelihood", [place]) for place in range(6)], pairs


def near(found, expected) -> bool:
    return found == [(pytest.approx(total, abs=2e-4), greedy) for total, greedy in expected]


def test_contexts_are_read_once_for_all_choices(tiny, tmp_path, reads) -> None:
    keys, pairs = some_pairs()
    shared, told = answers(tiny, tmp_path / "together"), []
    shared.report = lambda number, count: told.extend([number] * count)
    found = [Answering(shared, number).likelihoods(keys, pairs) for number in range(3)]
    assert reads == [3, 3]  # three contexts of one length in batches of two
    assert sorted(told) == [0] * 6 + [1] * 6 + [2] * 6
    assert [shared.journals[1].answers[key][1].batch_rows for key in keys] == [6, 6, 6, 6, 3, 3]
    for choice, own in zip(CHOICES, found, strict=True):
        assert near(own, Answering(answers(tiny, tmp_path / "alone", [choice]), 0).likelihoods(keys, pairs))


def test_answers_on_disk_are_not_measured_again(tiny, tmp_path, reads) -> None:
    keys, pairs = some_pairs()
    Answering(answers(tiny, tmp_path, CHOICES[1:2]), 0).likelihoods(keys[:2], pairs[:2])
    expected = [Answering(answers(tiny, tmp_path / "other"), number).likelihoods(keys, pairs) for number in range(3)]
    reads.clear()
    shared = answers(tiny, tmp_path)
    assert near(Answering(shared, 0).likelihoods(keys, pairs), expected[0])
    assert sorted(reads) == [2, 3]  # the first context without the second choice
    reads.clear()
    assert near(Answering(answers(tiny, tmp_path), 1).likelihoods(keys, pairs), expected[1]) and not reads


@pytest.mark.parametrize("fails", [("h2o",), ("snapkv",), ("h2o", "keepkv", "snapkv")])
def test_a_method_that_raises_leaves_the_others_their_answers(tiny, tmp_path, fails) -> None:
    keys, pairs = some_pairs()
    contexts = requests(tokens(30, 1), tokens(30, 2))
    names = [request_key("generate_until", [place]) for place in range(2)]
    shared, whole = answers(tiny, tmp_path / "some", fails=fails), answers(tiny, tmp_path / "all")
    for number, choice in enumerate(CHOICES):
        own, expected = Answering(shared, number), Answering(whole, number)
        if choice.method in fails:
            for ask in (lambda own=own: own.likelihoods(keys, pairs), lambda own=own: own.texts(names, contexts)):
                with pytest.raises(ZeroDivisionError, match="of this method"):
                    ask()
            assert not own.journal.answers
        else:
            assert near(own.likelihoods(keys, pairs), expected.likelihoods(keys, pairs))
            assert own.texts(names, contexts) == expected.texts(names, contexts)
    assert [CHOICES[number].method for number in sorted(shared.errors)] == list(fails)


def test_only_greedy_texts_are_written_together(tiny, tmp_path, reads) -> None:
    contexts = [tokens(30, 1), tokens(30, 2)]
    keys = [request_key("generate_until", [place]) for place in range(2)]
    for place, options in enumerate(((), (("do_sample", False), ("num_beams", 1), ("repetition_penalty", 1.0)))):
        shared = answers(tiny, tmp_path / f"greedy{place}")
        first = Answering(shared, 0).texts(keys, requests(*contexts, options=options))
        assert reads == [3] and [set(journal.answers) for journal in shared.journals] == [set(keys)] * 3
        alone = answers(tiny, tmp_path / f"alone{place}", CHOICES[:1])
        assert Answering(alone, 0).texts(keys, requests(*contexts, options=options)) == first
        reads.clear()
    for place, options in enumerate(((("num_beams", 2),), (("repetition_penalty", 1.3),), (("do_sample", True),))):
        shared = answers(tiny, tmp_path / f"other{place}")
        Answering(shared, 1).texts(keys, requests(*contexts, options=options))
        assert not reads and [set(journal.answers) for journal in shared.journals] == [set(), set(keys), set()]


def test_each_repeat_of_a_sampled_text_is_drawn_anew(tiny, tmp_path) -> None:
    torch.manual_seed(1)
    sampled = (("do_sample", True),)
    asked = requests(*[tokens(30, 1)] * 4, until=(), options=sampled)
    texts = Answering(answers(tiny, tmp_path, CHOICES[:1]), 0).texts(["the same"] * 4, asked)
    assert len(set(texts)) == 4


def test_the_protocol_simulated_runs_one_choice_at_a_time(tiny, tmp_path, reads) -> None:
    keys, pairs = some_pairs()
    shared = answers(tiny, tmp_path, CHOICES[:2], protocol="simulated")
    Answering(shared, 0).likelihoods(keys, pairs)
    assert not reads and [len(journal.answers) for journal in shared.journals] == [6, 0]
