"""What a form counts and shows is what the model is given, its chat template too, and no torch in the web's process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.new_run.prompt_view import tokens_as_html
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.prompt import encode_prompt
from kvlab.forms import compare_form
from kvlab.forms.uploads import excess_tokens, shorten_prompt, token_spans, truncate_prompt
from kvlab.models.chat import chat_of
from kvlab.models.info import chat_template, token_count
from kvlab.models.info.chat_template import ChatFormat, render_prompt
from kvlab.models.info.names import context_length
from kvlab.models.load import load_model
from kvlab.requests.compare import ModelRequest
from tests.families import CHAT_TEMPLATE, tiny_folder

PROMPT = " Where is the rabbit? <b>\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("chat") / "model", chat_template=CHAT_TEMPLATE)


@pytest.mark.usefixtures("templates_here")
@pytest.mark.parametrize("asked", [{}, {"system": "Be brief."}, {"thinking": False}, {"chat": "no"}])
def test_the_count_is_what_a_run_encodes(asked: dict[str, Any], folder: Path) -> None:
    is_what_a_run_encodes(asked, folder)


def test_the_count_of_a_second_process_is_what_a_run_encodes(folder: Path) -> None:
    is_what_a_run_encodes({"system": "No.", "thinking": True}, folder)


def is_what_a_run_encodes(asked: dict[str, Any], folder: Path) -> None:
    loaded = load_model(str(folder), device="cpu")
    request = ModelRequest(model=str(folder), **asked)
    ids = encode_prompt(loaded, PROMPT, 1, chat_of(request, loaded.tokenizer))
    assert token_count.count_tokens(PROMPT, ChatFormat.from_request(request)) == (ids.shape[1], True)


@pytest.mark.usefixtures("templates_here")
def test_the_prompts_own_place_is_known_and_the_rest_is_marked(folder: Path) -> None:
    read = render_prompt(PROMPT, ChatFormat(str(folder), system="Be brief."))
    start, stop = read.prompt_span
    assert read.templated and read.text[start:stop] == PROMPT.strip()
    assert read.text.startswith("<bos><turn>system\nBe brief.<end><turn>user\n")
    shown = tokens_as_html(read.text, token_spans(read.text, str(folder)) or [], read.prompt_span)
    around = len(read.text[:start].replace("<bos>", "b").replace("<turn>", "t").replace("<end>", "e"))
    around += len(read.text[stop:].replace("<turn>", "t").replace("<end>", "e"))  # one token a letter otherwise
    assert shown.count('class="around"') == around
    assert "<b>" not in shown, "nothing of a prompt is markup"
    few = shorten_prompt(read, 5)
    assert few.text == read.text[:start] + PROMPT.strip()[:5] + read.text[stop:]


def test_without_a_template_nothing_is_asked_of_a_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_rendered", lambda *_: pytest.fail("asked"))
    assert render_prompt(PROMPT, ChatFormat("mini")).text == PROMPT
    assert render_prompt(PROMPT, ChatFormat("somebody/not-here", system="Be brief.")).text == PROMPT


@pytest.mark.usefixtures("templates_here")
def test_a_switch_without_a_template_is_refused() -> None:
    for how in (ChatFormat("mini", system="Be brief."), ChatFormat("mini", thinking=True)):
        with pytest.raises(UserError, match="The system prompt or thinking switch would have no effect"):
            token_count.count_tokens("a", how)


def test_what_a_template_refuses_is_said_before_anything_is_queued(tmp_path: Path) -> None:
    strict = tiny_folder(tmp_path / "strict", chat_template="{{ raise_exception('not today') }}")
    with pytest.raises(UserError, match=r"rejects this prompt \(not today\)"):
        compare_form.make_request("a", str(strict), (MethodChoice(method="full"),))


def test_a_template_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    endless = tiny_folder(tmp_path / "endless", chat_template=loops)
    monkeypatch.setattr(chat_template, "SECONDS_ALLOWED", 2)
    with pytest.raises(UserError, match="gave no text in 2 seconds"):
        token_count.count_tokens("a", ChatFormat(str(endless)))


@pytest.mark.usefixtures("templates_here")
def test_a_prompt_is_cut_so_that_it_fits_with_its_template(folder: Path) -> None:
    how, room = ChatFormat(str(folder), system="Be brief."), context_length(str(folder))
    assert room
    text = "the rabbit " * (room // 11)
    assert excess_tokens(text, ChatFormat(str(folder), "no"), 1) == 0 < excess_tokens(text, how, 1)
    cut = truncate_prompt(text, how, 1, "end")
    assert excess_tokens(cut.text, how, 1) == 0 and room - 40 < token_count.count_tokens(cut.text, how)[0] < room


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("truncation", {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}),
        (
            "padding",
            {
                "strategy": {"Fixed": 300},
                "direction": "Left",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<pad>",
            },
        ),
    ],
)
def test_a_tokenizer_files_truncation_and_padding_are_not_counted(tmp_path: Path, section: str, value: Any) -> None:
    model = tiny_folder(tmp_path / "model")
    file = model / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {section: value}))
    is_what_a_run_encodes({"chat": "no"}, model)
    assert len(token_spans(PROMPT, str(model)) or []) == len(PROMPT)
