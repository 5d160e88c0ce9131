"""Several questions of one compressed context give what each gives alone, or as turns in a cache of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import kvlab
from kvlab.core.attention import ATTENTION_NAME
from kvlab.core.cache import CompressedCache
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import make_method
from kvlab.core.methods.scorers.window import WindowAttention
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.evaluation.results.rows import ResultStore
from kvlab.evaluation.several_questions import Answers, Questions, ask_each
from kvlab.models.load import LoadedModel
from tests.families import tiny_model

METHODS = ("full", "h2o", "snapkv", "keepkv")
NEW = 5


def tokens(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(5, 300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


CONTEXT, ASKED = tokens(90, 1), [tokens(9, 2), tokens(4, 3), tokens(12, 4)]


def caches(loaded: Any) -> list[CompressedCache]:
    return [kvlab.make_cache(loaded, make_method(name), 1.0 if name == "full" else 0.3) for name in METHODS]


def alone(loaded: Any, cache: CompressedCache, asked: list[list[int]]) -> list[list[int]]:
    """A cache by itself reads the context, then each question and its answer token by token."""
    answers: list[list[int]] = []
    with torch.inference_mode():
        cache.expect(len(CONTEXT))
        loaded.model(torch.tensor([CONTEXT]), past_key_values=cache, use_cache=True)
        for question in asked:
            given, answer = question, []
            for _ in range(NEW):
                logits = loaded.model(torch.tensor([given]), past_key_values=cache, use_cache=True).logits[0, -1]
                answer.append(int(logits.argmax()))
                given = [answer[-1]]
            loaded.model(torch.tensor([given]), past_key_values=cache, use_cache=True)
            answers.append(answer)
    return answers


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def loaded(request: pytest.FixtureRequest, tiny: LoadedModel) -> LoadedModel:
    """All layers compressed, or every other one with a sliding window that is not; no token ends an answer."""
    model = tiny_model(request.param, attention=ATTENTION_NAME, vocab_size=len(tiny.tokenizer), eos_token_id=None)
    model.generation_config.eos_token_id = None
    return replace(tiny, model=model)


def asked_of(loaded: Any, **more: Any) -> list[Answers]:
    questions = Questions(CONTEXT, ASKED, NEW, Stops(), **more)
    found = ask_each(loaded, questions, caches(loaded))
    assert not [one for one in found if isinstance(one, Exception)]
    return found


def test_turns_are_those_of_a_cache_by_itself(loaded: LoadedModel) -> None:
    for found, cache in zip(asked_of(loaded, keeps_answers=True), caches(loaded), strict=True):
        assert found.ids == alone(loaded, cache, ASKED)
        assert (
            found.memory.slots == cache.memory().live_slots
            and found.memory.logical_tokens == cache.memory().logical_tokens
        )


def test_each_question_is_asked_of_a_copy(loaded: LoadedModel) -> None:
    found = asked_of(loaded)
    for number, answers in enumerate(found):
        expected = [alone(loaded, caches(loaded)[number], [question])[0] for question in ASKED]
        assert answers.ids == expected
    later = ask_each(loaded, Questions(CONTEXT, ASKED[::-1], NEW, Stops()), caches(loaded))
    assert [one.ids[::-1] for one in later if isinstance(one, Answers)] == [one.ids for one in found]


def test_the_first_question_may_be_in_sight(tiny: LoadedModel) -> None:
    """Then it is compressed with the context, and the others are not."""
    whole = Questions(CONTEXT, ASKED, NEW, Stops(), keeps_answers=True, first_in_sight=True)
    shifted = Questions(CONTEXT + ASKED[0][:-1], [ASKED[0][-1:], *ASKED[1:]], NEW, Stops(), keeps_answers=True)
    full = ask_each(tiny, whole, caches(tiny)[:1])[0]
    assert isinstance(full, Answers)
    for found in ask_each(tiny, whole, caches(tiny)):
        assert isinstance(found, Answers) and found.ids[0][0] == full.ids[0][0], "all caches read the same pass"
    (reference,) = ask_each(tiny, shifted, caches(tiny)[:1])
    assert isinstance(reference, Answers) and reference.ids == full.ids, "where one token is read makes no difference"


def test_a_method_that_raises_ends_alone(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a broken score")

    monkeypatch.setattr(WindowAttention, "update", broken)
    found = ask_each(tiny, Questions(CONTEXT, ASKED, NEW, Stops()), caches(tiny))
    assert [isinstance(one, ZeroDivisionError) for one in found] == [name == "snapkv" for name in METHODS]


def test_rows_have_a_score_for_every_question(tiny: LoadedModel, tmp_path: Path) -> None:
    tasks = tuple(TaskChoice(task=name, difficulty={"questions": 3, "needles": 3}) for name in ("questions", "turns"))
    choices = (MethodChoice(method="streaming-llm", budget=0.3),)
    wanted = EvalRequest(model="tiny", tasks=tasks, choices=choices, samples=2, lengths=(300,))
    rows = evaluate(wanted, tmp_path, loaded=tiny).rows
    assert dict(zip(rows["task"], rows["question_aware"], strict=True)) == {"questions": False, "turns": True}
    assert (rows["prediction"].str.count("\n") == 2).all() and len(rows) == 8
    assert evaluate(wanted, tmp_path, loaded=tiny).rows["key"].tolist() == rows["key"].tolist()
    assert len(ResultStore(tmp_path).frame()) == 8, "nothing is measured twice"


def test_a_forced_text_has_no_parts_to_score(tiny: LoadedModel, tmp_path: Path) -> None:
    tasks = (TaskChoice(task="turns", difficulty={"questions": 3, "needles": 3}),)
    choices = (MethodChoice(method="streaming-llm", budget=0.3),)
    wanted = EvalRequest(model="tiny", tasks=tasks, choices=choices, samples=1, lengths=(300,), forced=True)
    rows = evaluate(wanted, tmp_path, loaded=tiny).rows
    assert rows["error"].isna().all() and rows["parts"].isna().all() and rows["kl"].notna().all()
