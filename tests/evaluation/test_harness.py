"""The whole evaluation on a tiny model: pairing, completeness, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pytest
import torch

import kvlab
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.evaluation import measure
from kvlab.evaluation.harness import evaluate, model_digest
from kvlab.evaluation.plan import default_lengths
from kvlab.evaluation.request_parser import parse_request
from kvlab.evaluation.results.rows import ResultStore
from kvlab.evaluation.results.summary import summarize
from kvlab.tasks.registry import get_task
from kvlab.tasks.tokens import prompt_ids

SETTINGS = {
    "model": "tiny",
    "tasks": "needle,key_value:pairs=8,next_token_kl:continuation=8",
    "files": [],
    "methods": "h2o,streaming-llm",
    "budgets": "0.2,16",
    "lengths": "220",
    "depths": None,
    "samples": 2,
    "seed": 3,
    "question_aware": "yes",
    "batch_rows": None,
    "skip_malformed": False,
}
MEASURED = ["key", "prediction", "score", "slots", "live_bytes", "allocated_bytes", "kl", "bits_per_byte"]


def request(**changes):
    return parse_request(**(SETTINGS | changes))


def spied(tiny, seen):
    """A cache maker that notes each choice in `seen`."""

    def make(choice):
        seen.append(choice)
        return kvlab.make_cache(tiny, make_method(choice.method, **choice.hyper_parameters), choice.budget)

    return make


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    return evaluate(request(), tmp_path_factory.mktemp("finished"), loaded=tiny).rows


def test_every_prompt_has_one_row_a_choice(finished):
    assert len(finished) == 3 * 2 * 5
    assert finished["key"].is_unique
    counts = finished.groupby(["task", "index"]).size()
    assert (counts == 5).all()
    assert set(finished["method"]) == {"full", "h2o", "streaming-llm"}


def test_rows_tell_what_was_asked_and_what_was_used(finished):
    assert finished["score"].notna().all()
    assert (finished["slots"] <= finished["logical_tokens"]).all()
    assert (finished["live_bytes"] <= finished["allocated_bytes"]).all()
    assert (finished["seconds"] > 0).all()
    full = finished[finished["method"] == "full"]
    assert (full["slots"] == full["logical_tokens"]).all()
    slots = finished[finished["budget_unit"] == "slots"]
    assert (slots["slots"] <= 17).all()
    text = finished[finished["task"] == "next_token_kl"]
    assert text["kl"].notna().all()
    assert (text.loc[text["method"] == "full", "kl"] < 1e-6).all()
    assert finished.loc[finished["task"] == "needle", "kl"].isna().all()
    assert (finished["prompt_tokens"] <= 220).all()
    assert all(len(json.loads(answer)) == 1 for answer in finished["answer"])
    assert json.loads(finished["versions"].iloc[0])["torch"] == torch.__version__
    assert finished["device"].str.startswith("cpu").all()


@pytest.mark.parametrize("aware", ["yes", "no"])
@pytest.mark.parametrize("batch_rows", [1, 3])
def test_all_methods_see_identical_prompts(tiny, tmp_path, monkeypatch, aware, batch_rows):
    seen = {}
    plain = measure.generate_together

    def spy(loaded, prompts, caches, in_sight, new_tokens, *rest):
        for prompt in prompts:
            seen.setdefault(tuple(prompt), []).extend((in_sight, cache) for cache in caches)
        return plain(loaded, prompts, caches, in_sight, 2, *rest)  # of what is written nothing is looked at

    monkeypatch.setattr(measure, "generate_together", spy)
    evaluate(request(tasks="needle,copy", question_aware=aware, batch_rows=batch_rows), tmp_path, loaded=tiny)
    assert len(seen) == 4
    assert all(len(uses) == 5 for uses in seen.values())
    assert all(len({cut for cut, _ in uses}) == 1 for uses in seen.values())


@pytest.mark.parametrize(("aware", "hidden"), [("yes", {"needle": 0, "few_shot": 1}), ("no", None)])
def test_the_question_is_in_sight_or_not(tiny, tmp_path, aware, hidden):
    wanted = request(tasks="needle,few_shot", samples=1, methods="h2o", question_aware=aware, lengths="700")
    rows = evaluate(wanted, tmp_path, loaded=tiny).rows
    for row in rows.itertuples():
        sample = get_task(row.task).generate(tiny.tokenizer, 700, row.seed, row.index)
        context, question = prompt_ids(tiny.tokenizer, sample)
        out_of_sight = len(question) if hidden is None else hidden[row.task]
        assert row.tokens_in_sight == len(context) + len(question) - out_of_sight
        assert row.prompt_tokens == len(context) + len(question)


def test_a_finished_evaluation_runs_no_model_again(tiny, tmp_path, finished):
    evaluate(request(), tmp_path, loaded=tiny)
    seen = []
    again = evaluate(request(), tmp_path, loaded=tiny, make_cache=spied(tiny, seen))
    assert len(seen) == 5  # each choice is only checked
    pd.testing.assert_frame_equal(again.rows[MEASURED], finished[MEASURED])


def test_more_samples_and_methods_measure_only_what_is_new(tiny, tmp_path):
    evaluate(request(tasks="needle"), tmp_path, loaded=tiny)
    seen = []
    more = request(tasks="needle", samples=3, methods="h2o,streaming-llm,snapkv")
    rows = evaluate(more, tmp_path, loaded=tiny, make_cache=spied(tiny, seen)).rows
    assert len(rows) == 3 * 7
    assert len(seen) - 7 == 3 * 7 - 2 * 5


def test_lost_rows_are_measured_again_to_the_same_values(tiny, tmp_path, finished):
    with ResultStore.opened(tmp_path) as store:
        half = finished.sample(frac=0.5, random_state=1)
        store.append(half.astype(object).where(half.notna(), None).to_dict("records"))
    rows = evaluate(request(), tmp_path, loaded=tiny).rows
    pd.testing.assert_frame_equal(rows[MEASURED], finished[MEASURED])
    assert len(ResultStore(tmp_path).frame()) == len(finished)


def test_an_interrupt_keeps_what_was_measured(tiny, tmp_path):
    def stop(progress):
        if progress.done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(request(), tmp_path, loaded=tiny, on_progress=stop)
    assert len(ResultStore(tmp_path).keys()) == 7


RUN = """
import sys, torch
from pathlib import Path
from kvlab.evaluation.results import rows as store
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.results.summary import summarize
from kvlab.evaluation.request_parser import parse_request
from kvlab.models.load import load_model
from dataclasses import replace
import json
torch.set_num_threads(1)
store.FLUSH_SECONDS = 0
loaded = replace(load_model(sys.argv[1], device="cpu"), name="tiny")
evaluate(parse_request(**json.loads(sys.argv[3])), Path(sys.argv[2]), loaded=loaded)
"""


def test_kill_9_in_the_middle_then_resume_gives_the_same_rows(tiny, tiny_folder, tmp_path, finished):
    command = [sys.executable, "-c", RUN, str(tiny_folder), str(tmp_path), json.dumps(SETTINGS)]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("part-*.parquet"))) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    saved = ResultStore(tmp_path).keys()
    assert 0 < len(saved) < len(finished)

    seen = []
    named = replace(tiny, name="tiny")
    rows = evaluate(request(), tmp_path, loaded=named, make_cache=spied(tiny, seen)).rows
    ahead_of_time = 5
    recomputed_references = sum(choice.method == "full" for choice in seen) - 1
    assert len(finished) - len(saved) <= len(seen) - ahead_of_time <= len(finished) - len(saved) + recomputed_references
    stored = ResultStore(tmp_path).frame()
    assert stored["key"].is_unique
    assert set(stored["key"]) == set(rows["key"])
    outcome = [name for name in MEASURED if name != "key"]
    pd.testing.assert_frame_equal(rows[outcome], finished[outcome])


def test_user_files_are_evaluated_like_tasks(tiny, tmp_path):
    path = tmp_path / "niah" / "validation.jsonl"
    path.parent.mkdir()
    line = json.dumps({"input": "The number is 12.\nWhat is the number?", "outputs": ["12"]})
    path.write_text(f"{line}\nnot json\n{line}\n")
    wanted = request(tasks="", files=[f"ruler={path}"], methods="h2o", budgets="0.2", skip_malformed=True)
    result = evaluate(wanted, tmp_path / "out", loaded=tiny)
    assert len(result.rows) == 2 * 2
    assert result.rows["key"].is_unique
    one = evaluate(wanted.model_copy(update={"samples": 1}), tmp_path / "out", loaded=tiny)
    assert len(one.rows) == 2
    assert one.notes[1].endswith("1 of its 2 prompts are used: raise --samples for more.")
    assert result.notes == [note for note in result.notes if f"{path}:2: " in note]
    assert len(result.notes) == 1
    assert set(result.rows["task"]) == {"ruler/niah"}
    assert summarize(result.rows)["samples"].tolist() == [2] * 2


def test_a_changed_file_is_another_measurement(tiny, tmp_path):
    path, keys = tmp_path / "x.jsonl", []
    for text in ("One story.", "Another story."):
        path.write_text(json.dumps({"document": text, "summary": "s"}))
        wanted = request(tasks="", files=[f"summaries={path}"], methods="h2o", budgets="0.2")
        rows = evaluate(wanted, tmp_path / "out", loaded=tiny).rows
        keys.append(set(rows["key"]))
    assert not keys[0] & keys[1]


def test_long_prompts_of_a_file_are_cut_to_the_window(tiny, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"document": "A long story. " * 600, "summary": "s"}))
    wanted = request(tasks="", files=[f"summaries={path}"], methods="h2o", budgets="0.2")
    rows = evaluate(wanted, tmp_path / "out", loaded=tiny).rows
    assert (rows["prompt_tokens"] + 64 <= 1024).all()
    assert (rows["prompt_tokens"] > 900).all()


def test_a_text_is_cut_into_windows_of_the_length_asked_for(tiny, tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("The king went down to the sea and never came back. " * 60)
    wanted = request(tasks="", files=[f"text={path}"], methods="h2o", budgets="0.2", lengths="300")
    rows = evaluate(wanted, tmp_path / "out", loaded=tiny).rows
    assert (rows["prompt_tokens"].between(290, 301)).all()
    assert (rows["metric"] == "kl").all()


def test_default_lengths_fit_the_window(tiny, tmp_path):
    rows = evaluate(
        request(tasks="copy", lengths=None, samples=1, methods="h2o", budgets="0.2"), tmp_path, loaded=tiny
    ).rows
    assert set(rows["length"]) == {896}
    assert default_lengths(get_task("needle"), 1 << 20) == get_task("needle").lengths
    assert default_lengths(get_task("needle"), 500) == (438,)


def test_the_digest_tells_weights_apart(tiny):
    before = model_digest(tiny.model)
    assert model_digest(tiny.model) == before
    weight = tiny.model.model.layers[1].mlp.up_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.add_(0.01)
        assert model_digest(tiny.model) != before
        weight.copy_(kept)
    assert model_digest(tiny.model) == before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tasks": "haystack"}, "There is no task called 'haystack'"),
        ({"tasks": "needle:straws=3"}, "straws"),
        ({"tasks": "needle:straws"}, "parameter=value"),
        ({"tasks": "key_value:pairs=many"}, "pairs=many"),
        ({"tasks": ""}, "Nothing to evaluate"),
        ({"methods": "h3o"}, "h3o"),
        ({"methods": "h2o:colour=1"}, "colour"),
        ({"budgets": "0"}, "0"),
        ({"budgets": "abc"}, "abc"),
        ({"budgets": ""}, "budget"),
        ({"lengths": "20"}, "20 tokens cannot hold"),
        ({"lengths": "4000"}, "window of 1024"),
        ({"lengths": "ten"}, "--lengths"),
        ({"depths": "1.5"}, "--depths"),
        ({"depths": "deep"}, "--depths"),
        ({"samples": 0}, "--samples"),
        ({"seed": 10_000_000}, "out of range"),
        ({"question_aware": "maybe"}, "--question-aware"),
        ({"files": ["ruler"]}, "format=path"),
        ({"files": ["squad=x.jsonl"]}, "squad"),
        ({"files": ["ruler=nowhere.jsonl"]}, "nowhere.jsonl"),
    ],
)
def test_bad_input_is_one_sentence_before_any_row(tiny, tmp_path, changes, told):
    with pytest.raises(UserError) as error:
        evaluate(request(**changes), tmp_path / "out", loaded=tiny)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("out/part-*"))
