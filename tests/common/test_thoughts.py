"""What follows the end of thinking is the answer, in every family's tags, and places in the text stay."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.common.thoughts import answer_of, hide_thinking, is_unfinished, open_tag
from kvlab.engine.restore.failed_run import Wanted
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.scoring.metrics import f1, rescore, score
from kvlab.views.frames.verdict import answer_tokens, judge

TAGS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<reasoning>", "</reasoning>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<thought>", "</thought>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]
WORDS = st.text("ab 1.\n", max_size=20)


@pytest.mark.parametrize(("begin", "end"), TAGS)
def test_only_what_follows_the_end_is_judged(begin: str, end: str):
    text = f"{begin}Is it 48213? No.{end}\nThe number is 11111."
    assert judge([text], "48213").kind == "wrong" and judge([text], "11111").kind == "right"
    assert answer_of(text) == "The number is 11111."
    assert judge([f"{begin}It is 48213"], "48213").kind == "wrong" and is_unfinished(f"{begin}It is 48213")
    assert not is_unfinished(text)
    for metric in ("whole_match_all", "f1", "rouge_l", "string_match_all", "exact_match"):
        assert score(metric, text, ["48213"]) == 0 and score(metric, text, ["The number is 11111."]) == 1


@pytest.mark.parametrize(("begin", "end"), TAGS[:-1])
def test_a_template_may_have_opened_it(begin: str, end: str):
    assert judge([f"48213? No.{end}11111"], "48213").kind == "wrong"
    assert open_tag(f"Question?<|assistant|>{begin}\n").strip() == begin.strip()
    assert open_tag(f"Question?{begin}\n\n{end}\n\n") == "" == open_tag("Question?")
    assert answer_of("48213, I think", opened=True) == "" and answer_of(f"48213{end}11111", opened=True) == "11111"


@given(WORDS, WORDS, WORDS, st.sampled_from(TAGS))
def test_places_stay_where_thinking_is_hidden(before: str, thought: str, after: str, tags: tuple[str, str]):
    text = f"{before}{tags[0]}{thought}{tags[1]}{after}"
    hidden = hide_thinking(text)
    assert len(hidden) == len(text) and hidden.endswith(after)
    assert not hidden[: len(text) - len(after)].strip()
    assert hide_thinking(before) == before == answer_of(before)


def test_the_answers_tokens_are_those_after_thinking():
    texts = ["<think>", " 48213", "</think>", " It", " is", " 48213", "."]
    assert answer_tokens(texts, "48213") == (5, 5) and judge(texts, "48213").at == 5


def test_answers_to_several_questions_think_line_by_line():
    lines = "<think>a</think> 1\n<think>never ends\n<think>b</think> 3"
    assert score("each_line", lines, ["1", "2", "3"]) == pytest.approx(2 / 3)


def test_rows_are_scored_again_without_their_thinking():
    text = "<think>Oslo, or Rome?</think> Rome"
    rows = pd.DataFrame({"metric": ["whole_match_all"], "prediction": [text], "answer": ['["Rome"]'], "score": [0.0]})
    assert rescore(rows, "f1")["score"].tolist() == [f1("Rome", ["Rome"])]


def test_a_stop_text_within_thinking_ends_nothing():
    stops = Stops(("\n",), open_tag="<think>")
    assert not stops.are_in("a\nb") and not stops.are_in("a\nb</think>\nc") and stops.are_in("a\nb</think>\nc\nd")
    assert stops.cut("a\nb</think>\nc\nd") == "<think>a\nb</think>\nc"
    assert Stops(("\n",)).cut("\n c\nd") == "c"


def test_a_rerun_goes_on_while_it_thinks_or_the_number_may_go_on():
    texts = ["<think>48213 so", "It is 48213", "It is 48213.", "It is 48213. So"]
    wanted = Wanted("48213")
    settled = [wanted.is_settled(lambda ids: [texts[ids[0]]], [number]) for number in range(4)]
    assert settled == [False, False, False, True]
    thinking = Wanted("48213", thinks=True)
    assert not thinking.is_there([], ["48213", " so"]) and thinking.is_there([], ["no</think>", "48213"])
