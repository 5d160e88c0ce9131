"""Styles of questions: what a model reads in each, and that the row's key and the answer's score know the style."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.harness import evaluate, prepare_evaluation
from kvlab.evaluation.prepare import prepare
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.evaluation.request_parser import parse_word
from kvlab.models.chat import Chat
from kvlab.models.load import LoadedModel, load_model
from kvlab.tasks.registry import TASKS
from kvlab.tasks.sample import STYLES, apply_style, choose_style
from tests.families import CHAT_TEMPLATE, tiny_folder

# RULER's own wording is the same in every style.
ASKING = [name for name in TASKS if name not in ("perplexity", "next_token_kl") and not name.startswith("ruler_")]


@pytest.fixture(scope="module")
def mini() -> LoadedModel:
    return load_model("mini", device="cpu")


@pytest.fixture(scope="module")
def talker(mini: LoadedModel) -> LoadedModel:
    """Mini with a chat template, for the tokens of its prompts."""
    tokenizer = load_model("mini", device="cpu").tokenizer
    tokenizer.chat_template = "{% for m in messages %}USER {{ m['content'] }} END {% endfor %}MODEL "
    return replace(mini, tokenizer=tokenizer)


@pytest.mark.parametrize("task", ASKING)
def test_each_style_asks_the_same_question(task: str, mini: LoadedModel) -> None:
    sample = TASKS[task].generate(mini.tokenizer, 768, 5, 0)
    words = sample.question.removeprefix("\nQuestion: ")
    question, _, lead = words.partition("\nAnswer:")
    assert apply_style(sample, "continuation") == sample
    chat, alone = apply_style(sample, "chat"), apply_style(sample, "question")
    assert chat.question == alone.question == f"\n\nQuestion: {question}"
    assert chat.answer_start == lead.strip() and alone.answer_start == ""
    assert chat.max_new_tokens == sample.max_new_tokens < alone.max_new_tokens
    assert chat.answers == alone.answers == sample.answers and alone.stop is None


def test_auto_follows_the_chat_template() -> None:
    assert choose_style("auto", has_chat=True) == "chat"
    assert choose_style("auto", has_chat=False) == "continuation"
    for style in STYLES:
        assert parse_word("style", style) == choose_style(style, has_chat=True) == choose_style(style, has_chat=False)
    with pytest.raises(UserError, match="--set style takes auto, continuation, chat, question, not 'loud'"):
        parse_word("style", "loud")


def test_in_a_chat_the_first_words_open_the_models_turn(talker: LoadedModel) -> None:
    request = EvalRequest(model="mini", tasks=(TaskChoice(task="needle"),), samples=1, lengths=(256,))
    (unit,) = prepare_evaluation(request, talker).units
    prompt = prepare(unit.prompt, talker, Chat(talker.tokenizer))
    text = talker.tokenizer.decode(prompt.context + prompt.question)
    before, _, turn = text.partition("MODEL")
    assert turn.strip() == prompt.sample.answer_start and prompt.sample.answer_start not in before.split("Question:")[1]
    assert unit.prompt.identity.difficulty == '{"style":"chat"}'


def test_held_back_tokens_are_the_last_of_the_opening(talker: LoadedModel) -> None:
    request = EvalRequest(model="mini", tasks=(TaskChoice(task="few_shot"),), samples=1, lengths=(512,))
    (unit,) = prepare_evaluation(request, talker).units
    prompt = prepare(unit.prompt, talker, Chat(talker.tokenizer))
    assert prompt.sample.hold_back > 0
    whole = prompt.context + prompt.question
    late = talker.tokenizer.decode(whole[prompt.in_sight(True) :])
    assert prompt.sample.answer_start.endswith(late.strip()) and late.strip()


def test_styles_are_different_measurements(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "chat", chat_template=CHAT_TEMPLATE))
    keys: set[str] = set()
    for style in STYLES:
        request = EvalRequest(
            model=folder, tasks=(TaskChoice(task="copy"),), choices=(MethodChoice(method="h2o", budget=0.5),),
            samples=1, lengths=(300,), style=style,
        )  # fmt: skip
        rows = evaluate(request, tmp_path / style).rows
        assert len(rows) == 2 and rows["score"].between(0, 1).all()
        keys |= set(rows["key"])
    assert len(keys) == 6
