"""IFEval's format, written by hand here: read anywhere, checked where lm-eval is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation.data_check import recognise
from kvlab.evaluation.scoring.metrics import check_metric, score
from kvlab.models.load import LoadedModel
from kvlab.tasks.loaders import load_file

ROWS = [
    {
        "key": 7,
        "prompt": "Write about a fox. Use no comma, at least 5 words, and the word den.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words", "keywords:existence"],
        "kwargs": [
            {"num_words": None, "relation": None, "keywords": None},
            {"num_words": 5, "relation": "at least", "keywords": None},
            {"num_words": None, "relation": None, "keywords": ["den"]},
        ],
    },
    {
        "key": 8,
        "prompt": "Say this first: Hello fox. Then go on.",
        "instruction_id_list": ["combination:repeat_prompt"],
        "kwargs": [{"prompt_to_repeat": "Hello fox."}],
    },
]


def file_of(folder: Path, rows: list[dict]) -> Path:
    file = folder / "input_data.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_each_instruction_is_a_part_with_its_arguments(tiny: LoadedModel, tmp_path: Path) -> None:
    file = file_of(tmp_path, ROWS)
    assert recognise(file).form == "ifeval"
    first, second = load_file("ifeval", file, tiny.tokenizer).samples
    assert first.context == ROWS[0]["prompt"] and first.metric == "ifeval" and first.max_new_tokens == 1280
    assert [part.kind for part in first.parts] == ROWS[0]["instruction_id_list"]
    assert [json.loads(answer)["kwargs"] for answer in first.answers] == [
        {}, {"num_words": 5, "relation": "at least"}, {"keywords": ["den"]},
    ]  # fmt: skip
    assert len(second.parts) == 1
    short = ROWS[0] | {"kwargs": [{}]}
    with pytest.raises(UserError, match=r"jsonl:1: 3 instructions and 1 entries of 'kwargs'"):
        load_file("ifeval", file_of(tmp_path, [short]), tiny.tokenizer)


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_without_lm_eval_the_metric_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"'ifeval' needs the package lm-eval: pip install 'kvlab\[lm-eval\]'"):
        check_metric("ifeval")


@pytest.mark.parametrize(
    ("answer", "strict"),
    [
        ("The fox sleeps in its den.", [1, 1, 1]),
        ("The fox, it sleeps in its den.", [0, 1, 1]),
        ("In the den.", [1, 0, 1]),
        ("", [0, 0, 0]),
    ],
)
def test_the_checks_are_those_of_lm_eval(tiny: LoadedModel, tmp_path: Path, answer: str, strict: list[int]) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    first, second = load_file("ifeval", file_of(tmp_path, ROWS), tiny.tokenizer).samples
    assert [score("ifeval", answer, [one]) for one in first.answers] == strict
    assert score("ifeval", answer, first.answers) == pytest.approx(sum(strict) / 3)
    assert score("ifeval_all", answer, first.answers) == all(strict)
    assert score("ifeval", "Hello fox. I go on.", second.answers) == 1 > score("ifeval", answer, second.answers)
    chatty = "Sure, here it is:\nThe fox sleeps in its den."  # loosely, the first line is left out
    assert (score("ifeval_all", chatty, first.answers), score("ifeval_all_loose", chatty, first.answers)) == (0, 1)
    assert score("ifeval_loose", chatty, first.answers) == 1
