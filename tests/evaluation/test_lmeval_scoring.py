"""Requests, answers on disk, rows and refusals of `kvlab lm-eval`; without lm-eval."""

from __future__ import annotations

import importlib.util
import json

import pytest
from typer.testing import CliRunner

from kvlab.cli import commands
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.lm_eval.own_tasks import write_tasks
from kvlab.evaluation.lm_eval.request import LmEvalRequest
from kvlab.evaluation.lm_eval.rows import (
    CHOICES,
    GENERATION,
    ROLLING,
    Answers,
    Measurement,
    RowMaker,
    identity_of,
    request_key,
    score_of,
    select_metric,
)
from kvlab.evaluation.lm_eval.run import check_kinds, check_simulated
from kvlab.evaluation.results.rows import ResultStore
from kvlab.evaluation.results.summary import summarize

H2O = MethodChoice(method="h2o", budget=0.2)


def test_choices_of_own_tasks_leave_the_space_to_the_harness(tmp_path, tiny) -> None:
    """It puts its delimiter, one space, before each: with another the right label would not be the model's own word."""
    write_tasks(tmp_path, tiny.tokenizer, 520, 2)
    rows = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert row["choices"][row["label"]] == row["answer"] and all(one == one.strip() for one in row["choices"])
        assert row["text"] == row["text"].rstrip(" ")


def test_a_method_that_only_compresses_prompts_is_not_simulated() -> None:
    with pytest.raises(UserError, match="snapkv:decode=budget"):
        check_simulated(MethodChoice(method="snapkv", budget=0.2))
    check_simulated(MethodChoice(method="snapkv", budget=0.2, hyper_parameters={"decode": "budget"}))
    check_simulated(MethodChoice(method="full", budget=1.0))


def test_protocol_and_hold_back_are_in_the_rows_key() -> None:
    asked = [
        LmEvalRequest(tasks=("piqa",)),
        LmEvalRequest(tasks=("piqa",), hold_back=4),
        LmEvalRequest(tasks=("piqa",), protocol="simulated"),
        LmEvalRequest(tasks=("piqa",), num_fewshot=2),
        LmEvalRequest(tasks=("piqa",), metric="acc_norm"),
    ]
    identities = [identity_of(request, "piqa", SAMPLE) for request in asked]
    assert len(set(identities)) == len(asked)
    assert identities[0].task == "lm-eval:piqa" and json.loads(identities[0].difficulty)["hold_back"] == 1
    assert identities[2].task == "lm-eval:piqa, simulated" and "hold_back" not in identities[2].difficulty


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (CHOICES, {"hold_back": 0}, "--set hold_back=0"),
        (ROLLING, {}, "use --set protocol=simulated"),
        (GENERATION, {"protocol": "simulated"}, "generates text"),
    ],
)
def test_what_a_protocol_does_not_have_is_refused(kind, fields, said) -> None:
    with pytest.raises(UserError, match=said):
        check_kinds(LmEvalRequest(tasks=("piqa",), **fields), {"piqa": kind})
    check_kinds(LmEvalRequest(tasks=("piqa",), hold_back=0), {"piqa": GENERATION})


SAMPLE = {
    "doc_id": 3, "prompt_hash": "0123456789abcdef" * 4, "filter": "none", "target": 1,
    "metrics": ["perplexity", "acc"], "perplexity": -2.5, "acc": 1.0,
    "arguments": [("The cat sat", " down"), ("The cat sat", " up")], "filtered_resps": [(-3.0, False), (-2.0, True)],
}  # fmt: skip


def test_a_metric_that_is_no_score_is_passed_over() -> None:
    better = {"perplexity": False, "acc": True}
    metric = select_metric("piqa", "", [SAMPLE], better)
    assert (metric.name, metric.filter) == ("acc", "none") and score_of(SAMPLE, metric) == 1
    with pytest.raises(UserError, match="--set metric is one of acc"):
        select_metric("piqa", "f1", [SAMPLE], better)
    with pytest.raises(UserError, match="no score from 0 to 1"):
        select_metric("piqa", "", [SAMPLE | {"metrics": ["perplexity"]}], better)
    rolling = {"filter": "none", "metrics": ["bits_per_byte"], "bits_per_byte": (-8.0, 4)}
    assert score_of(rolling, select_metric("wikitext", "", [rolling], {})) == pytest.approx(8 / 4 / 0.6931471805599453)


def test_rows_are_read_as_any_evaluations(tmp_path) -> None:
    """Into the store and through the summary: kept, bytes and the paired difference come out."""
    request = LmEvalRequest(tasks=("piqa",))
    for choice, slots in ((MethodChoice(method="full", budget=1.0), 50.0), (H2O, 10.0)):
        answers = Answers(tmp_path, {"choice": choice.label})
        for arguments in SAMPLE["arguments"]:
            measured = Measurement(52, 49, slots, 50, int(slots) * 8, int(slots) * 9, int(slots) * 8, 0.5, 0.25)
            answers.add(request_key(CHOICES, arguments), [-1.0, True], measured)
        made_by = {"key": choice.label, "model": "tiny", "model_digest": "d"}
        score = {"acc": 1.0 if choice.method == "full" else 0.0}
        metric, identity = select_metric("piqa", "", [SAMPLE], {}), identity_of(request, "piqa", SAMPLE)
        maker = RowMaker(request, choice, {"variant": "x"}, answers, made_by)
        row = maker.row(identity, CHOICES, SAMPLE | score, metric)
        assert row["seconds"] == 1.0 and row["tokens_in_sight"] == 49 and row["prediction"] == "up"
        with ResultStore.opened(tmp_path) as store:
            store.append([row])
    summary = summarize(ResultStore(tmp_path).frame()).set_index("method")
    assert summary.loc["h2o", "difference"] == -1 and summary.loc["h2o", "kept"] == pytest.approx(0.2)
    assert summary.loc["h2o", "bytes"] == pytest.approx(0.2) and summary.loc["full", "task"] == "lm-eval:piqa"


def test_an_answer_that_a_kill_truncated_is_the_only_one_lost(tmp_path) -> None:
    measured = Measurement(52, 49, 10.5, 50, 80, 90, 80, 0.5, None)
    answers = Answers(tmp_path, {"rows": 1})
    for place in range(3):
        answers.add(request_key(CHOICES, [place]), [-1.5, place == 1], measured)
    lines = answers.path.read_text().split("\n")
    answers.path.write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:20])
    again = Answers(tmp_path, {"rows": 1})
    assert again.known == {request_key(CHOICES, [place]): ([-1.5, place == 1], measured) for place in range(2)}
    again.add(request_key(CHOICES, [2]), [-1.5, False], measured)
    assert Answers(tmp_path, {"rows": 1}).known == answers.known
    assert not Answers(tmp_path, {"rows": 2}).known


def test_without_the_package_the_command_says_how_to_get_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = CliRunner().invoke(commands, ["lm-eval", "--out", str(tmp_path), "--tasks", "piqa"])
    assert isinstance(found.exception, UserError) and "pip install" in str(found.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--set", "protocol=both"),
        ("--limit", "0"),
        ("--tasks", ","),
        ("--set", "hold_back=-1"),
        ("--methods", "nobody"),
    ],
)
def test_bad_options_are_one_sentence_before_anything_is_looked_for(tmp_path, option, value) -> None:
    given = {"--out": str(tmp_path / "out"), "--tasks": "piqa"} | {option: value}
    found = CliRunner().invoke(commands, ["lm-eval", *[word for pair in given.items() for word in pair]])
    assert isinstance(found.exception, UserError), found.output
    said = str(found.exception)
    assert "\n" not in said and said.endswith(".") and (value in said or option in said), said
    assert not (tmp_path / "out").exists()
