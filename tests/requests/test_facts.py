"""Expected answers and facts: found in the prompt, carried by requests and records, planted in a person's own text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvlab.common.answer_match import find_answer
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.models.info.mini import NEEDLE_PHRASINGS
from kvlab.requests.compare import CompareRequest
from kvlab.requests.facts import check_answer, find_facts
from kvlab.tasks.haystack import plant
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace import open_run
from kvlab.trace.record import FILE
from tests.synthetic.runs import write_synthetic_run

STORY = "It was late. The old lamp went out, and nobody spoke. Then the door opened. Rain came in."


def request(**fields: object) -> CompareRequest:
    return CompareRequest(prompt=STORY, choices=(MethodChoice(method="h2o"),), **fields)


@given(st.integers(0, len(STORY) - 1), st.integers(1, 30))
def test_words_of_the_prompt_become_their_first_place(start: int, length: int):
    words = STORY[start : start + length].strip()
    if not words:
        return
    ((first, stop),) = request(facts=(words,)).facts
    assert STORY[first:stop] == words
    assert all(STORY[earlier : earlier + len(words)] != words for earlier in range(first))


def test_a_request_with_answer_and_facts_survives_the_queue():
    asked = request(answer="  The lamp ", facts=("old lamp", (0, 6)))
    assert asked.answer == "The lamp"
    assert CompareRequest.model_validate_json(asked.model_dump_json()) == asked
    assert request().answer is None


@pytest.mark.parametrize("facts", [("no such words",), ("  ",), ((3, 3),), ((5, 2),), ((0, len(STORY) + 1),), ((1,),)])
def test_a_fact_that_the_prompt_lacks_is_one_sentence(facts: tuple):
    with pytest.raises(UserError) as refused:
        find_facts(STORY, facts)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValidationError):
        request(facts=facts)


@pytest.mark.parametrize("answer", ["", " \n", "x" * 3000])
def test_an_answer_must_say_something(answer: str):
    with pytest.raises(UserError):
        check_answer(answer)
    with pytest.raises(ValidationError):
        request(answer=answer)


def test_runs_recorded_before_open_and_a_fact_beyond_the_prompt_does_not(tmp_path: Path):
    path = write_synthetic_run(tmp_path)
    record = json.loads((path / FILE).read_text())
    record.pop("record_checksum")
    stop = len(record["prompt"])
    for change in ("answer", "facts"):
        record.pop(change)
    (path / FILE).write_text(json.dumps(record))
    assert open_run(path).record.answer is None
    (path / FILE).write_text(json.dumps(record | {"facts": [[0, stop + 1]]}))
    with pytest.raises(UserError, match="beyond the prompt"):
        open_run(path)


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("ring", "The RING.", True),
        ("ring", "spring", False),
        ("123", "51234", False),
        ("the lamp", "It is the\n  Lamp!", True),
        ("(b)", "it is f(b).", True),
        ("東京", "首都は東京です", True),
    ],
)
def test_an_answer_is_found_as_whole_words(answer: str, text: str, found: bool):
    assert (find_answer(text, answer) is not None) == found


@given(st.integers(0, 50), st.floats(0, 1), st.integers(0, len(NEEDLE_PHRASINGS) - 1))
def test_a_planted_needle_leaves_the_text_as_it_was(seed: int, depth: float, kind: int):
    planted = plant(STORY, depth, seed, kind)
    context, question = planted.prompt.split("\nQuestion: ")
    assert context.count(planted.fact) == 1
    assert re.search(rf"\b{planted.answer}\b", planted.fact)
    assert planted.answer not in STORY + question
    assert context.replace(planted.fact, "").split() == STORY.split()
    before = context.split(planted.fact)[0].strip()
    assert not before or before.endswith("."), "it stands between two sentences"


def test_a_deeper_needle_stands_later():
    places = [plant(STORY, depth, 1).prompt.index(plant(STORY, depth, 1).fact) for depth in (0.0, 0.3, 0.6, 1.0)]
    assert places == sorted(places)
    assert places[0] <= 1
    assert len(set(places)) == 4
    with pytest.raises(UserError, match="no text"):
        plant(" ", 0.5, 0)


def test_the_samples_with_a_question_name_the_words_that_hold_its_answer():
    for sample in shipped_samples():
        spans = find_facts(sample.text, sample.facts)
        assert bool(spans) == (sample.answer is not None)
        for start, stop in spans:
            assert sample.answer in sample.text[start:stop]
            assert stop < sample.text.rindex("\nQuestion:")


def test_a_fact_is_found_whatever_its_quotes_and_case_where_it_is_not_there_as_written():
    prompt = "I don\u2019t know. Zu\u0308rich is far. I DON'T."
    (quoted, city) = find_facts(prompt, ["don't know", "Zürich"])
    assert [prompt[slice(*place)] for place in (quoted, city)] == ["don\u2019t know", "Zu\u0308rich"]
    assert find_facts(prompt, ["I DON'T"]) == ((30, 37),), "a place as written comes first"
