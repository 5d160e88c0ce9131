"""Instruct models are spoken to in their own template, and a run shows what they really saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine import compare
from kvlab.engine.forward import end_ids
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.models.info import token_count
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import CompareRequest
from kvlab.requests.conversation import Turn
from kvlab.trace import open_run
from kvlab.trace.record import repeat_request
from kvlab.views.frames.facts import fact_positions
from tests.families import CHAT_TEMPLATE, tiny_folder

PROMPT = "Where is the rabbit?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("chat") / "model", chat_template=CHAT_TEMPLATE)


def shown(folder: Path, root: Path, **asked: Any) -> tuple[str, Any]:
    """What a run's tokens show of the prompt, joined, and its record."""
    request = CompareRequest(
        prompt=PROMPT, model=str(folder), choices=(MethodChoice(method="h2o"),), max_new_tokens=2, level="light",
        device="cpu", **asked,
    )  # fmt: skip
    run = open_run(compare(request, root)[0])
    tokens = run.tokens[run.tokens.phase == "prompt"]
    assert len(tokens) == run.record.prompt_tokens
    return "".join(tokens.text), run.record


def test_the_template_is_used_by_default_and_its_tokens_are_shown(folder: Path, tmp_path: Path) -> None:
    text, record = shown(folder, tmp_path)
    assert text == f"<bos><turn>user\n{PROMPT}<end><turn>assistant\n"
    assert record.chat == {"system": "", "thinking": None}
    assert record.prompt == PROMPT


def test_system_prompt_and_thinking_are_part_of_it(folder: Path, tmp_path: Path) -> None:
    text, record = shown(folder, tmp_path, system="Be brief.", thinking=False)
    assert text == (f"<bos><turn>system\nBe brief.<end><turn>user\n{PROMPT}<end><turn>assistant\n<think></think>")
    assert record.chat == {"system": "Be brief.", "thinking": False}


def test_without_a_template_or_without_chat_it_is_plain_text(folder: Path, tmp_path: Path) -> None:
    plain = tiny_folder(tmp_path / "plain")
    for model, asked in ((plain, {}), (folder, {"chat": "no"})):
        text, record = shown(model, tmp_path / "runs", **asked)
        assert text == f"<bos>{PROMPT}" and record.chat is None


def test_a_conversation_is_read_in_the_template_or_as_plain_text(folder: Path, tmp_path: Path) -> None:
    said = (("system", "Be brief."), ("user", "The rabbit is 17."), ("assistant", "Noted."), ("user", "Which?"))
    turns = tuple(Turn(role=role, content=text) for role, text in said)
    known: dict[str, Any] = {"choices": (MethodChoice(method="h2o"),), "max_new_tokens": 2, "device": "cpu"}
    texts = {}
    for name, model in (("chat", folder), ("plain", tiny_folder(tmp_path / "plain"))):
        request = CompareRequest(turns=turns, facts=("17",), model=str(model), level="light", **known)
        run = open_run(compare(request, tmp_path / "runs")[0])
        tokens = run.tokens[run.tokens.phase == "prompt"].set_index("position")["text"]
        texts[name] = "".join(tokens)
        facts = fact_positions(run.tokens, run.record.prompt, run.record.facts)
        assert "".join(tokens[facts]) == "17", "a fact of an earlier turn is found in what was read"
        assert token_count.count_tokens(request.prompt, ChatFormat.from_request(request)) == (
            run.record.prompt_tokens,
            True,
        )
        again = repeat_request(run.record, MethodChoice(method="cam"), "again")
        assert again.prompt == request.prompt and again.turns == (turns if name == "chat" else ())
    turned = "".join(f"<turn>{role}\n{text}<end>" for role, text in said)
    assert texts["chat"] == f"<bos>{turned}<turn>assistant\n"
    written = "".join(f"{role.capitalize()}: {text}\n\n" for role, text in said)
    assert texts["plain"] == f"<bos>{written}Assistant:"


@pytest.mark.parametrize("chat_template", [None, CHAT_TEMPLATE.replace("{{ bos_token }}", "")])
def test_bos_is_not_forced_where_the_tokenizer_puts_none(chat_template: str | None, tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model", chat_template=chat_template, bos=False)
    text, _ = shown(model, tmp_path / "runs")
    assert "<bos>" not in text


def test_mini_keeps_its_bos_and_is_plain() -> None:
    loaded = load_model("mini", device="cpu")
    assert loaded.encode("The king.")[0, 0] == loaded.tokenizer.bos_token_id
    assert loaded.tokenizer.chat_template is None


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"chat": "no", "system": "Be brief."}, "The system prompt or thinking switch would have no effect"),
        ({"chat": "no", "thinking": True}, "would have no effect: chat is off"),
    ],
)
def test_what_nothing_would_read_is_refused(asked: dict[str, Any], sentence: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        shown(folder, tmp_path, **asked)


def test_a_switch_or_a_role_the_template_does_not_have_is_refused(tmp_path: Path) -> None:
    no_switch = CHAT_TEMPLATE.split("{% if enable_thinking")[0] + "{% endif %}"
    with pytest.raises(UserError, match="no switch for thinking"):
        shown(tiny_folder(tmp_path / "a", chat_template=no_switch), tmp_path, thinking=True)
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + no_switch
    with pytest.raises(UserError, match=r"rejects this prompt \(no system role here\)"):
        shown(tiny_folder(tmp_path / "b", chat_template=strict), tmp_path, system="Be brief.")
    with pytest.raises(UserError, match="rejects this prompt"):
        shown(tiny_folder(tmp_path / "c", chat_template="{% for %}"), tmp_path)


def test_a_continuation_ends_at_every_end_of_the_generation_config(folder: Path, tmp_path: Path) -> None:
    """Whatever is likely first is made an end: compare and eval then stop at their first token."""
    loaded = load_model(str(folder), device="cpu")
    assert loaded.model.generation_config is not None
    request = {"model": str(folder), "device": "cpu"}
    first = compare(
        CompareRequest(prompt=PROMPT, choices=(MethodChoice(method="full"),), max_new_tokens=3, level="off", **request),
        tmp_path, loaded=loaded,
    )  # fmt: skip
    tokens = open_run(first[0]).tokens
    likely = int(tokens[tokens.phase == "free"].id.iloc[0])
    loaded.model.generation_config.eos_token_id = [1, likely]
    assert end_ids(loaded) == {1, likely, 2}
    again = compare(
        CompareRequest(prompt=PROMPT, choices=(MethodChoice(method="full"),), max_new_tokens=3, level="off", **request),
        tmp_path, loaded=loaded,
    )  # fmt: skip
    tokens = open_run(again[0]).tokens
    assert list(tokens[tokens.phase == "free"].id) == [likely]


def test_evaluation_speaks_in_the_template_and_its_key_says_so(folder: Path, tmp_path: Path) -> None:
    """In sight of the question or not, the same tokens; a checkpoint's own repetition penalty changes nothing."""
    asked = {"tasks": (TaskChoice(task="needle"),), "lengths": (200,), "samples": 1, "model": str(folder)}
    asked |= {"style": "continuation"}  # the same text in and out of a chat
    loaded = load_model(str(folder), device="cpu")
    found = {}
    for name, more in {"chat": {}, "brief": {"system": "Be brief."}, "plain": {"chat": "no"}}.items():
        result = evaluate(EvalRequest(**asked, **more), tmp_path / "out", loaded=loaded)
        found[name] = result.rows.iloc[0]
    assert len({row.key for row in found.values()}) == 3
    assert found["chat"].prompt_tokens - found["plain"].prompt_tokens == around_tokens(loaded)
    assert found["brief"].prompt_tokens > found["chat"].prompt_tokens
    assert not isinstance(found["plain"].chat, str) and "Be brief." in found["brief"].chat
    assert loaded.model.generation_config is not None
    loaded.model.generation_config.repetition_penalty = 1.5
    fresh = evaluate(EvalRequest(**asked), tmp_path / "other", loaded=loaded).rows.iloc[0]
    assert fresh.prediction == found["chat"].prediction


def around_tokens(loaded: LoadedModel) -> int:
    """Tokens a turn takes beyond its text, counted by hand: <turn> and <end> are one, other letters one a byte."""
    return 1 + len("user\n") + 1 + 1 + len("assistant\n")


def test_only_one_model_is_held(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is gone before the second is loaded, and a model that is asked for again is not loaded again."""
    import weakref

    from kvlab.models import load as loading

    other = tiny_folder(tmp_path / "other")
    first = loading.held_model(CompareRequest(prompt="a", model=str(folder), choices=(MethodChoice(method="h2o"),)))
    assert (
        loading.held_model(CompareRequest(prompt="b", model=str(folder), choices=(MethodChoice(method="cam"),)))
        is first
    )
    watched = weakref.ref(first.model)
    del first
    alive: list[object] = []

    def load(name: str, **options: Any) -> LoadedModel:
        alive.append(watched())
        return load_model(name, **options)

    monkeypatch.setattr(loading, "load_model", load)
    asked = CompareRequest(prompt="a", model=str(other), choices=(MethodChoice(method="h2o"),), dtype="bfloat16")
    assert loading.held_model(asked).model.dtype == torch.bfloat16
    assert alive == [None]
