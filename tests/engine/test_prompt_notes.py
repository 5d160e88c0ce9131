"""A second beginning-of-text token and a chat that was rendered before it was pasted: noted, and nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvlab.core.assets import asset_path
from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.models.info import token_count
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.load import load_model
from kvlab.requests.compare import CompareRequest
from kvlab.requests.conversation import Turn
from kvlab.requests.prompt_notes import MARKERS, TokenizerInfo, prompt_notes, template_notes
from kvlab.trace import open_run
from tests.families import CHAT_TEMPLATE

LLAMA = TokenizerInfo("<s>", "</s>", ("<s>", "</s>", "<unk>"))
CHATML = TokenizerInfo(None, "<|im_end|>", ("<|im_start|>", "<|im_end|>"), "{{'<|im_start|>' + m.role + '<|im_end|>'}}")
SMOLLM = TokenizerInfo("<|im_start|>", "<|im_end|>", ("<|im_start|>", "<|im_end|>"))
GPT2 = TokenizerInfo("<|endoftext|>", "<|endoftext|>", ("<|endoftext|>",))
RENDERED = "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "tokens", "templated", "reader", "words"),
    [
        ("<s>The lamp", ["<s>", "<s>", "The", "lamp"], False, LLAMA, "<s> at its beginning twice"),
        ("a <s> b <s>", ["<s>", "a", "<s>", "b", "<s>"], False, LLAMA, "<s> 3 times"),
        ("The lamp", ["<s>", "The", "lamp"], False, LLAMA, ""),
        ("<s>The lamp", ["<s>", "The", "lamp"], False, LLAMA, ""),  # a tokenizer that adds none
        ("One. Two.", ["<s>", "One", "</s>", "<s>", "Two"], True, LLAMA, ""),  # a template's own, before every turn
        ("a<|endoftext|>b", ["<|endoftext|>", "a", "<|endoftext|>", "b"], False, GPT2, ""),  # between documents
        ("<|endoftext|>b", ["<|endoftext|>", "<|endoftext|>", "b"], False, GPT2, "at its beginning twice"),
        (RENDERED, [], True, CHATML, "holds <|im_start|>"),
        (RENDERED, ["<|im_start|>", "user", "<|im_start|>"], False, SMOLLM, ""),  # its turns begin with its BOS
        (RENDERED, [], False, CHATML, ""),  # as it should be: --chat no
        (RENDERED, [], False, LLAMA, "as ordinary text"),
        ("[INST] What? [/INST]", [], False, LLAMA, "as ordinary text"),
        ("### Instruction:\nSay it.\n\n### Response:\n", [], True, CHATML, "holds ### Instruction:"),
        (
            "### Instruction:\nSay it.\n\n### Response:\n",
            [],
            False,
            LLAMA,
            "",
        ),  # what a base model may be meant to read
        ("A chat. USER: What? ASSISTANT:", [], True, CHATML, "holds USER:"),
        ("An assistant is a user of list[int] and of <b>.", [], True, CHATML, ""),
    ],
)
def test_what_is_likely_a_mistake_is_one_sentence(
    prompt: str, tokens: list[str], templated: bool, reader: TokenizerInfo, words: str
):
    notes = prompt_notes(prompt, tokens, templated, reader)
    assert len(notes) == bool(words) and all(words in note for note in notes)


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_of_every_template_are_known(marker: str):
    assert prompt_notes(f"{marker}user\nWhat?", [], True, CHATML)
    assert prompt_notes(f"{marker}user\nWhat?", [], False, LLAMA)


def test_a_run_and_the_form_say_the_same(tmp_path: Path, templates_here: None):
    folder = shutil.copytree(asset_path("mini"), tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    loaded = load_model(str(folder), device="cpu")
    for prompt, chat, count in (
        ("A lamp is red.", "no", 0),
        ("<bos>A lamp is red.", "no", 1),
        ("A lamp is red.", "auto", 0),
        (RENDERED, "auto", 1),
        ("<bos>[INST] A lamp is red. [/INST]", "no", 2),
    ):
        choices = (MethodChoice(method="h2o", budget=0.5),)
        request = CompareRequest(
            prompt=prompt, model=str(folder), chat=chat, choices=choices, max_new_tokens=1, level="off"
        )
        record = open_run(compare(request, tmp_path / "runs", loaded=loaded)[0]).record
        notes = [
            note for note in record.notes if "prompt" in note.lower() and ("<bos>" in note or "looks like" in note)
        ]
        assert notes == token_count.notes(prompt, ChatFormat(str(folder), chat)) and len(notes) == count, prompt


def test_a_template_that_rewrites_turns_or_reads_the_clock_is_noted():
    turns = (Turn(role="user", content="Where?"), Turn(role="assistant", content="<think>Oslo?</think> Rome."))
    assert template_notes("<u>Where?<a><think>Oslo?</think>  Rome.", turns, "{{ m.content }}") == []
    (rewritten,) = template_notes("<u>Where?<a>Rome.", turns, "{{ m.content }}")
    assert "turn 2 (assistant)" in rewritten
    (dated,) = template_notes("<u>Where?", turns[:1], "{{ strftime_now('%d') }}")
    assert "clock" in dated
