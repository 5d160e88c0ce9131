"""Turns are read in OpenAI's form or refused in one sentence, and each stands in the text where it is said to be."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.requests.compare import CompareRequest, OnePrompt
from kvlab.requests.conversation import Turn, as_text, dropped_parts, parse_messages, turns_of_text
from kvlab.views.frames.facts import fact_positions

SAID = st.text("ab \n:.é", min_size=1, max_size=12).filter(str.strip)
ROUNDS = st.lists(SAID, min_size=1, max_size=7).filter(lambda said: len(said) % 2 == 1)


def turns_of(said: list[str]) -> tuple[Turn, ...]:
    return tuple(Turn(role="user" if at % 2 == 0 else "assistant", content=text) for at, text in enumerate(said))


@given(ROUNDS)
def test_every_turn_stands_in_the_text_in_order(said: list[str]) -> None:
    text = as_text(turns_of(said))
    assert text.startswith("User: ") and text.endswith("\n\nAssistant:")
    assert [text[start:stop] for _, start, stop in turns_of_text(text)] == [one.strip() for one in said]


@given(ROUNDS, st.data())
def test_a_fact_of_any_turn_is_found_where_a_template_puts_it(said: list[str], data: st.DataObject) -> None:
    """One token a letter, and one a role: the tokens that are found spell the fact, in the turn that holds it."""
    turns = turns_of(said)
    at = data.draw(st.integers(0, len(said) - 1))
    prompt = as_text(turns)
    first = sum(len(turn.role) + 2 + len(turn.content) + 2 for turn in turns[:at]) + len(turns[at].role) + 2
    fact = said[at].strip()
    start = first + said[at].index(fact)
    pieces, mark = ["<bos>"], -1
    for number, turn in enumerate(turns):
        pieces += ["<turn>", turn.role, "\n"]
        mark = len(pieces) if number == at else mark
        pieces += [*turn.content.strip(), "<end>"]
    tokens = pd.DataFrame({"phase": "prompt", "position": range(len(pieces)), "text": pieces})
    found = fact_positions(tokens, prompt, [(start, start + len(fact))]).tolist()
    assert found == list(range(mark, mark + len(fact)))


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (None, "holds no messages"),
        ([], "holds no messages"),
        (["hello"], "Message 1 of it has no role"),
        ([{"role": "tool", "content": "x"}], "has the role 'tool': give system, user or assistant"),
        ([{"role": ["user"], "content": "x"}], "give system, user or assistant"),
        ([{"role": "user", "content": None, "tool_calls": []}], "Message 1 of it holds no text"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "The last turn is the assistant's"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}, {"role": "user", "content": "z"}],
         "Turn 2 is a system prompt"),
        ([{"role": "user", "content": "x"}] * 201, "201 turns and the most is 200"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_one_sentence(messages: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_messages(messages, "it")


def test_parts_that_are_no_text_are_counted_and_other_names_of_roles_are_known() -> None:
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "this?"},
    ]
    turns, dropped = parse_messages(
        [{"role": "developer", "content": "Brief."}, {"role": "human", "content": parts}], "it"
    )
    assert turns == (Turn(role="system", content="Brief."), Turn(role="user", content="What is\nthis?"))
    assert dropped == 1


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x"}, ()),
        ({"content": "x", "tool_calls": None, "refusal": None, "name": "ann"}, ()),
        ({"content": ["x", {"type": "text", "text": "y"}, {"type": "input_text", "text": "z"}]}, ()),
        ({"content": ["x", {"type": "image_url", "image_url": {}}, {"type": "image"}]}, ("2 images were left out.",)),
        ({"content": ["x", {"type": "input_audio", "input_audio": {}}]}, ("1 audio part was left out.",)),
        ({"content": ["x", {"type": "image", "text": "its caption"}]}, ("1 image was left out.",)),
        ({"content": ["x", {"type": "hologram"}, 3]}, ("2 unknown parts were left out.",)),
        ({"content": "x", "tool_calls": [{}, {}]}, ("2 tool calls were left out.",)),
        ({"content": "x", "function_call": {"name": "f"}}, ("1 tool call was left out.",)),
        ({"content": "x", "reasoning_content": "hm"}, ("1 reasoning part was left out.",)),
        ({"content": ["x", {"type": "file", "file": {}}, {"type": "tool_use", "input": {}}, {"type": "refusal"}]},
         ("1 file, 1 tool call and 1 refusal were left out.",)),
    ],
)  # fmt: skip
def test_what_a_message_holds_beside_its_text_is_named(message: dict[str, Any], said: tuple[str, ...]) -> None:
    messages = [{"role": "user", **message}]
    assert dropped_parts(messages) == said
    turns, _ = parse_messages(messages, "it")
    assert turns[0].content.startswith("x")


def test_a_request_has_its_text_from_its_turns_or_its_prompts_and_never_both() -> None:
    turns = turns_of(["The number is 17.", "Yes.", "Which?"])
    known: dict[str, Any] = {"choices": (MethodChoice(method="h2o"),)}
    request = CompareRequest(turns=turns, facts=("17",), **known)
    assert request.prompt == as_text(turns)
    assert [request.prompt[start:stop] for start, stop in request.facts] == ["17"]
    assert CompareRequest.model_validate_json(request.model_dump_json()) == request
    several = CompareRequest(prompts=(OnePrompt(prompt="one"), OnePrompt(turns=turns)), **known)
    assert (several.prompt, several.comparisons) == ("one", 2)
    assert CompareRequest.model_validate_json(several.model_dump_json()) == several
    for wrong in (
        {"turns": turns, "prompt": "other"},
        {"turns": turns, "system": "Be brief."},
        {"prompts": several.prompts, "answer": "x"},
        {"prompts": (OnePrompt(prompt="x" * 2_000_000),) * 9},
    ):
        with pytest.raises(ValidationError):
            CompareRequest(**wrong, **known)
