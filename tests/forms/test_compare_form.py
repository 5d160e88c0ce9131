"""What people type becomes a request, or one sentence: prompts, models, budgets, hyper-parameters."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.prompt import encode_prompt
from kvlab.forms import compare_form
from kvlab.models.info import names, token_count
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.load import load_model
from kvlab.planning import choices, parameters


def entry(name: str = "m", needs_budget: bool = True, **properties: dict) -> choices.MethodEntry:
    schema = {"properties": properties}
    return choices.MethodEntry(name=name, family="f", title=name, needs_budget=needs_budget, parameters=schema)


@given(st.lists(st.integers(1, 10**9) | st.floats(0.001, 1), min_size=1, max_size=6))
def test_budgets_read_back_as_they_were_written(amounts: list[int | float]):
    found = compare_form.parse_budgets(", ".join(repr(amount) for amount in amounts))
    once = [(type(amount), amount) for number, amount in enumerate(amounts) if not repeated(amounts, number)]
    assert [(type(amount), amount) for amount in found] == once


def repeated(amounts: list[int | float], number: int) -> bool:
    return any(type(other) is type(amounts[number]) and other == amounts[number] for other in amounts[:number])


def test_one_slot_and_the_whole_prompt_are_different_budgets():
    assert [type(amount) for amount in compare_form.parse_budgets("1 1.0 100% 100 %")] == [int, float]


def test_a_preset_that_finds_its_own_budget_comes_once():
    free = choices.PresetEntry(about="theirs", needs_budget=False)
    asked = entry("a").model_copy(update={"presets": {"paper": free}})
    assert [choice.budget for choice in compare_form.choices([asked], [0.1, 0.2], {"a": {"preset": "paper"}})] == [1.0]
    changed = compare_form.choices([asked], [0.1, 0.2], {"a": {"preset": "paper", "lengths": "budget"}})
    assert [choice.budget for choice in changed] == [0.1, 0.2]


def test_every_method_comes_with_every_budget_and_the_reference_once():
    found = compare_form.choices(
        [entry("full", needs_budget=False), entry("a"), entry("b")], [0.1, 64], {"a": {"x": 1}}
    )
    assert found == (
        MethodChoice(method="full", budget=1.0),
        MethodChoice(method="a", budget=0.1, hyper_parameters={"x": 1}),
        MethodChoice(method="a", budget=64, hyper_parameters={"x": 1}),
        MethodChoice(method="b", budget=0.1),
        MethodChoice(method="b", budget=64),
    )


@pytest.mark.parametrize("options", [{"max_new_tokens": 0}, {"max_new_tokens": 10**6}, {"level": "loud"}])
def test_an_option_out_of_range_is_one_sentence(options: dict):
    with pytest.raises(UserError, match=next(iter(options))):
        compare_form.make_request("text", "mini", (MethodChoice(method="full"),), **options)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "   ",
        "two words",
        "./nowhere",
        "/nowhere",
        "~nobody/x",
        "a/b/c",
        "-a/b",
        "x" * 5000,
        "gpt2",
        "a/..",
        "a\0/b",
    ],
)
def test_what_is_no_model_is_one_sentence_and_has_no_tokenizer(name: str):
    with pytest.raises(UserError):
        names.check_model(name)
    assert names.model_file(name, "tokenizer.json") is None


def test_a_folder_must_hold_a_model(tmp_path: Path):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        names.check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds no weights"):
        names.check_model(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert names.check_model(f" {tmp_path} ") == str(tmp_path)
    assert names.check_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_tokens_are_counted_by_the_models_tokenizer_and_estimated_without_it(tmp_path: Path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    assert token_count.count_tokens("a b c", ChatFormat(str(tmp_path))) == (1, False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert token_count.count_tokens("a b c", ChatFormat(str(tmp_path))) == (3, True)
    (tmp_path / "tokenizer.json").write_text("{")
    assert token_count.count_tokens("a b c", ChatFormat(str(tmp_path))) == (1, False)


def test_a_prompt_longer_than_the_model_reads_is_one_sentence_before_anything_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compare_form, "count_tokens", lambda prompt, model: (len(prompt.split()), True))
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 100}}')
    (tmp_path / "model.safetensors").touch()
    assert names.context_length(str(tmp_path)) == 100
    chosen = (MethodChoice(method="full"),)
    assert compare_form.make_request("word " * 60, str(tmp_path), chosen, max_new_tokens=40)
    with pytest.raises(UserError, match="shorten the prompt to at most 60 tokens"):
        compare_form.make_request("word " * 61, str(tmp_path), chosen, max_new_tokens=40)
    (tmp_path / "config.json").write_text("[")
    assert names.context_length(str(tmp_path)) is None


def test_the_form_and_the_engine_say_a_prompt_is_too_long_in_the_same_words(tiny_model_folder: Path):
    chosen, prompt = (MethodChoice(method="full"),), "word " * 1000
    with pytest.raises(UserError) as of_engine:
        encode_prompt(load_model(str(tiny_model_folder)), prompt, 40)
    with pytest.raises(UserError) as of_form:
        compare_form.make_request(prompt, str(tiny_model_folder), chosen, max_new_tokens=40)
    assert str(of_form.value) == str(of_engine.value)


def test_a_schema_says_kind_limits_and_default_of_each_parameter():
    method = entry(
        rate={"type": "number", "default": 0.5, "exclusiveMinimum": 0, "maximum": 1, "description": "a rate"},
        variant={"enum": ["paper", "code"], "default": "code"},
        window={"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        flag={"type": "boolean", "default": True},
        either={"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3},
        kind={"$ref": "#/$defs/Kind", "default": "b"},
    )
    method.parameters["$defs"] = {"Kind": {"enum": ["a", "b"], "type": "string"}}
    found = {parameter.name: parameter for parameter in parameters.parameters(method)}
    assert next(iter(found)) == "variant"
    assert (found["rate"].kind, found["rate"].limits) == ("number", "greater than 0 and at most 1")
    assert (found["variant"].kind, found["variant"].options) == ("choice", ("paper", "code"))
    assert (found["window"].kind, found["window"].optional, found["window"].minimum) == ("integer", True, 1)
    assert (found["kind"].kind, found["kind"].options) == ("choice", ("a", "b"))
    assert (found["flag"].kind, found["either"].kind) == ("switch", "json")


def test_only_changed_values_within_their_limits_pass():
    method = entry(
        rate={"type": "number", "default": 0.5, "exclusiveMinimum": 0, "maximum": 1},
        n={"type": "integer", "default": 2},
    )
    assert parameters.changed_values(method, {"rate": 0.5, "n": 2}) == {}
    assert parameters.changed_values(method, {"rate": 1.0, "n": 3}) == {"rate": 1.0, "n": 3}
    for rate in (0.0, 1.01):
        with pytest.raises(UserError, match=r"m: rate is .*, and must be greater than 0 and at most 1"):
            parameters.changed_values(method, {"rate": rate})


def answer(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(choices, "COMMAND", (sys.executable, "-c", code))
    choices._readings.clear()


def test_the_registry_is_asked_once_and_again_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x'); "
    answer(monkeypatch, count + "import sys; sys.exit('no methods today')")
    for _ in range(2):
        with pytest.raises(UserError, match=r"failed \(no methods today\)"):
            choices.methods()
    listed = json.dumps([{"name": "a", "family": "f", "title": "A", "more": 1}])
    answer(monkeypatch, count + f"print({listed!r})")
    assert [method.name for method in choices.methods() + choices.methods()] == ["a", "a"]
    assert (tmp_path / "count").read_text() == "xxx"
    choices._readings.clear()


@pytest.mark.parametrize("printed", ["", "[1]", '{"a": 1}', "[{}]"])
def test_an_answer_that_is_no_list_of_methods_is_one_sentence(monkeypatch: pytest.MonkeyPatch, printed: str):
    answer(monkeypatch, f"print({printed!r})")
    with pytest.raises(UserError, match="no list of methods"):
        choices.methods()
    choices._readings.clear()


def test_the_client_side_imports_no_model_code():
    code = "import sys, kvlab.jobs, kvlab.forms.compare_form, kvlab.planning.parameters, "
    code += "kvlab.jobs.worker, kvlab.cli.app; "
    code += "print([name for name in ('torch', 'transformers', 'streamlit') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_words_of_the_form_become_settings_of_the_request() -> None:
    chosen = compare_form.choices([entry for entry in choices.methods() if entry.name == "h2o"], [0.2])
    asked = {"device": "cuda:1", "placement": "auto", "weights": "none", "chat": "auto", "system": "Be brief."}
    request = compare_form.make_request("a b", "somebody/chat", chosen, thinking="no", **asked)
    assert (request.device, request.placement, request.weights) == ("cuda:1", "auto", None)
    assert (request.chat, request.system, request.thinking) == ("auto", "Be brief.", False)
    assert compare_form.make_request("a b", "mini", chosen, thinking="template", weights="4bit").weights == "4bit"
    with pytest.raises(UserError, match="device"):
        compare_form.make_request("a b", "mini", chosen, device="toaster")


def test_other_threads_go_on_while_a_long_prompt_is_counted():
    """A page of another visitor waits for nobody's prompt: the longest silence is a small part of the counting."""
    text, silences, done = "The quick brown fox jumps over lazy dog 48213. " * 8_000, [0.0], threading.Event()

    def listen() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            silences.append(now - last)
            last = now

    token_count.count_tokens("warm", ChatFormat("mini"))
    listener = threading.Thread(target=listen)
    listener.start()
    begun = time.perf_counter()
    token_count.count_tokens(text, ChatFormat("mini"))
    taken = time.perf_counter() - begun
    done.set()
    listener.join()
    assert max(silences) < taken / 2
