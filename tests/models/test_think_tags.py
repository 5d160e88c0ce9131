"""Tags of thinking that only a chat template declares: found in it, and used wherever a text is judged."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kvlab.common.thoughts import Tags, answer_of, declared_tags, is_unfinished, open_tag
from kvlab.core.choice import MethodChoice
from kvlab.engine import compare
from kvlab.engine.restore.failed_run import Wanted
from kvlab.evaluation.generate import Stops
from kvlab.evaluation.scoring.metrics import rescore, score
from kvlab.models.chat import Chat, decode_answer, special_tokens, think_tags
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run
from kvlab.views.frames.board import answer_texts, ends_in_thinking, judge_any
from tests.families import CHAT_TEMPLATE, tiny_folder

TURNS = (
    "{%% for m in messages %%}<turn>{{ m['role'] }}\n"
    "{%% if m.get('%s') and loop.last %%}%s{{ m['%s'] }}%s{%% endif %%}{{ m['content'] }}<end>{%% endfor %%}"
    "{%% if add_generation_prompt %%}<turn>assistant\n%s{%% endif %%}"
)
REFLECT = ("<reflect>", "</reflect>")
PLAN = ("<|begin_of_plan|>", "<|end_of_plan|>")


def template(tags: Tags, field: str = "reasoning_content", begun: str = "") -> str:
    """A template that puts `tags` around the thought of the last turn, and ends a prompt with `begun`."""
    return TURNS % (field, f"{tags[0]}\n", field, f"\n{tags[1]}\n\n", begun)


def tokenizer_with(folder: Path, chat_template: str | None) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_folder(folder / "model", chat_template=chat_template))


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
@pytest.mark.parametrize("tags", [REFLECT, PLAN, ("[PLAN]", "[/PLAN]")])
def test_tags_of_another_name_are_read_from_the_template(tmp_path: Path, tags: Tags, field: str) -> None:
    assert think_tags(tokenizer_with(tmp_path, template(tags, field))) == tags


@pytest.mark.parametrize(
    "chat_template",
    [
        None,
        CHAT_TEMPLATE,
        template(("<think>", "</think>")),
        template(("Thought:", "Answer:")),
        template(("", "")),
        "{{ raise_exception('no') }}",
    ],
)
def test_known_tags_words_and_templates_without_thoughts_declare_none(
    tmp_path: Path, chat_template: str | None
) -> None:
    own = tokenizer_with(tmp_path, chat_template)
    assert think_tags(own) is None and "think_tags" not in Chat(own).settings


def test_a_template_that_always_writes_the_tags_is_read(tmp_path: Path) -> None:
    always = template(REFLECT).replace("m.get('reasoning_content')", "m['role'] == 'assistant'")
    assert think_tags(tokenizer_with(tmp_path, always)) == REFLECT


def test_only_what_follows_the_closing_tag_is_judged() -> None:
    text = "<reflect>Is it 48213? No.</reflect>\nThe number is 11111."
    assert score("whole_match_all", text, ["48213"]) == 1, "without the tags it is judged by the thought"
    assert score("whole_match_all", text, ["48213"], tags=REFLECT) == 0
    assert score("exact_match", text, ["The number is 11111."], tags=REFLECT) == 1
    assert answer_of("48213?</reflect>11111", tags=REFLECT) == "11111"
    assert is_unfinished("<reflect>48213", tags=REFLECT) and not is_unfinished(text, tags=REFLECT)
    assert open_tag("Question?<turn>assistant\n<reflect>\n", REFLECT) == "<reflect>\n"
    assert Stops(("\n",), tags=REFLECT).cut("<reflect>a\nb</reflect>one\ntwo") == "<reflect>a\nb</reflect>one"
    assert not Wanted("48213", tags=REFLECT).is_there([0], [text]) and Wanted("11111", tags=REFLECT).is_there(
        [0], [text]
    )
    assert answer_of("<think>48213</think>11111", tags=REFLECT) == "11111", "known tags stay known"


def test_rows_are_scored_again_by_the_tags_that_they_keep() -> None:
    rows = pd.DataFrame({"metric": "f1", "prediction": "<reflect>48213</reflect>11111", "answer": '["11111"]'}, [0, 1])
    kept = rows.assign(chat=['{"system": "", "thinking": null, "think_tags": ["<reflect>", "</reflect>"]}', None])
    assert rescore(kept, "exact_match")["score"].tolist() == [1, 0]
    assert rescore(rows, "exact_match")["score"].tolist() == [0, 0], "rows of before have no column for it"


def test_special_tokens_of_declared_tags_stay_in_the_text(tmp_path: Path) -> None:
    own = tokenizer_with(tmp_path, template(PLAN))
    own.add_special_tokens({"additional_special_tokens": [*PLAN, "<more>"]})
    special_tokens.cache_clear()
    ids = own("<|begin_of_plan|>48213?<|end_of_plan|>11111<more>", add_special_tokens=False)["input_ids"]
    assert decode_answer(own, ids) == "<|begin_of_plan|>48213?<|end_of_plan|>11111"


def test_a_run_keeps_the_tags_and_is_judged_by_them(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", chat_template=template(REFLECT, begun="<reflect>\n"))
    request = CompareRequest(
        prompt="Where is the rabbit?", model=str(folder), choices=(MethodChoice(method="h2o"),), max_new_tokens=2,
        level="light", device="cpu",
    )  # fmt: skip
    run = open_run(compare(request, tmp_path)[0])
    assert declared_tags(run.record.chat) == REFLECT and ends_in_thinking(run)
    assert any("within thinking" in note for note in run.record.notes)
    assert not "".join(answer_texts(run, "free")).strip(), "the thought never ends"
    assert judge_any(answer_texts(run, "free"), [run.record.free_text]).kind == "wrong"
    before = run.record.model_copy(update={"chat": {"system": "", "thinking": None}})
    assert declared_tags(before.chat) is None
