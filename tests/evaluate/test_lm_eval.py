"""The harness itself on local tasks, without a network; skipped where lm-eval is not installed."""

from __future__ import annotations

import json
import os

import pandas as pd
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -c constraints.txt 'kvlab[lm-eval]'")

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluate.harness import cache_maker, evaluate
from kvlab.evaluate.request_parser import parse_request
from kvlab.evaluate.results.store import ResultStore
from kvlab.evaluate.shared_prompt import SharedPrompt
from kvlab.lmeval import likelihood, run
from kvlab.lmeval.own_tasks import write_tasks
from kvlab.lmeval.request import LmEvalRequest
from kvlab.lmeval.run import run_lm_eval

H2O = MethodChoice(method="h2o", budget=0.2)
ROLLING = """\
task: passages
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: bits_per_byte
"""


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder, tiny.tokenizer, 520, 3)
    texts = [json.loads(line)["text"] for line in (folder / "kvlab_needle.jsonl").read_text().splitlines()]
    (folder / "passages.jsonl").write_text("".join(json.dumps({"text": text[:90]}) + "\n" for text in texts))
    (folder / "passages.yaml").write_text(ROLLING.format(data=folder / "passages.jsonl"))
    return folder


def asked(folder, tasks, **fields) -> LmEvalRequest:
    fields = {"choices": (H2O,)} | fields
    return LmEvalRequest(tasks=tasks, include_path=folder, model="tiny", **fields)


def test_the_full_cache_is_the_harnesss_own_model(tiny, folder, tmp_path, monkeypatch) -> None:
    pytest.importorskip("peft", reason="the harness's own HFLM needs peft: pip install peft")
    from lm_eval.models.huggingface import HFLM

    from kvlab.lmeval import harness

    theirs = HFLM(pretrained=str(tiny.name), device="cpu", dtype="float32", batch_size=1)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = ["kvlab_few_shot", "kvlab_needle", "kvlab_few_shot_text"]
    expected = simple_evaluate(model=theirs, tasks=tasks, task_manager=manager, bootstrap_iters=0)["samples"]
    seen = []
    evaluate_tasks = harness.evaluate_tasks
    monkeypatch.setattr(harness, "evaluate_tasks", lambda *given: seen.append(evaluate_tasks(*given)) or seen[-1])
    rows = run_lm_eval(asked(folder, tuple(tasks), choices=()), tmp_path, tiny).rows
    for task in tasks:
        for ours, their in zip(seen[-1]["samples"][task], expected[task], strict=True):
            if task == "kvlab_few_shot_text":
                assert ours["filtered_resps"] == their["filtered_resps"]
                continue
            for (logprob, greedy), (wanted, greedily) in zip(
                ours["filtered_resps"], their["filtered_resps"], strict=True
            ):
                assert logprob == pytest.approx(wanted, abs=1e-5 * max(1, abs(wanted))) and greedy == greedily
            assert ours["prompt_hash"] == their["prompt_hash"] and ours["acc"] == their["acc"]
    assert rows.groupby("task").size().to_dict() == {f"lm-eval:{task}": 3 for task in tasks}
    assert rows["content"].tolist() == [x["prompt_hash"][:16] for task in tasks for x in expected[task]]


def test_whole_texts_are_the_harnesss_own(tiny, folder, tmp_path) -> None:
    pytest.importorskip("peft", reason="the harness's own HFLM needs peft: pip install peft")
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(pretrained=str(tiny.name), device="cpu", dtype="float32", batch_size=1)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    expected = simple_evaluate(model=theirs, tasks=["passages"], task_manager=manager, bootstrap_iters=0)
    rows = run_lm_eval(asked(folder, ("passages",), protocol="simulated"), tmp_path, tiny).rows
    sizes = [bits[1] for bits in (sample["bits_per_byte"] for sample in expected["samples"]["passages"])]
    full = rows[rows["method"] == "full"]
    mean = float((full["score"] * sizes).sum() / sum(sizes))
    assert mean == pytest.approx(expected["results"]["passages"]["bits_per_byte,none"], rel=1e-5)
    assert (rows["metric"] == "bits_per_byte").all() and rows[rows["method"] == "h2o"]["score"].notna().all()


def test_a_method_that_is_finished_is_not_run_again(tiny, folder, tmp_path, monkeypatch) -> None:
    request = asked(folder, ("kvlab_few_shot",))
    first = run_lm_eval(request, tmp_path, tiny).rows
    assert first["method"].tolist() == ["full"] * 3 + ["h2o"] * 3 and first["key"].is_unique
    assert not list((tmp_path / ".answers").glob("*"))

    def never(*given, **named):
        raise AssertionError("scored again")

    with monkeypatch.context() as patched:
        patched.setattr(likelihood, "_forward", never)
        patched.setattr(SharedPrompt, "read", never)
        again = run_lm_eval(request, tmp_path, tiny).rows
    pd.testing.assert_frame_equal(first, again)
    other = run_lm_eval(request.model_copy(update={"hold_back": 3, "limit": 1}), tmp_path, tiny).rows
    assert not set(other["key"]) & set(first["key"])
    simulated = run_lm_eval(request.model_copy(update={"protocol": "simulated", "limit": 1}), tmp_path, tiny).rows
    assert set(simulated["task"]) == {"lm-eval:kvlab_few_shot, simulated"}
    assert simulated["slots"].iloc[-1] == pytest.approx(0.2 * simulated["logical_tokens"].iloc[-1], abs=1)


def test_labels_that_the_model_writes_are_those_of_an_evaluation(tiny, folder, tmp_path) -> None:
    ours = run_lm_eval(asked(folder, ("kvlab_few_shot_text",)), tmp_path / "harness", tiny).rows
    request = parse_request(
        model="tiny", tasks="few_shot", files=[], methods="h2o", budgets="0.2", lengths="520", depths=None, samples=3,
        seed=0, question_aware="yes", batch_rows=None, skip_malformed=False,
    )  # fmt: skip
    theirs = evaluate(request, tmp_path / "eval", tiny).rows
    for method in ("full", "h2o"):
        one, other = (rows[rows["method"] == method] for rows in (ours, theirs))
        begun = [(a[: len(b)], b) for a, b in zip(one["prediction"], other["prediction"], strict=True)]
        assert all(a == b for a, b in begun), begun
        assert one["tokens_in_sight"].tolist() == other["tokens_in_sight"].tolist()


def test_contexts_are_read_once_for_all_methods(tiny, folder, tmp_path, monkeypatch) -> None:
    """Scored choices and written labels; each method's rows are those of a run with it alone."""
    tasks, choices = ("kvlab_few_shot", "kvlab_few_shot_text"), [H2O, MethodChoice(method="snapkv", budget=0.2)]
    reads, told, read = [], [], SharedPrompt.read
    with monkeypatch.context() as patched:
        patched.setattr(SharedPrompt, "read", lambda shared: reads.append(len(shared.branches)) or read(shared))
        rows = run_lm_eval(asked(folder, tasks, choices=choices), tmp_path / "all", tiny, told.append).rows
    assert reads == [3] * 6 and (rows["batch_rows"] == 3).all()
    done = [progress.done for progress in told]
    assert done == sorted(done) and done[-1] == told[-1].total
    same = ["key", "method", "score", "prediction", "slots", "live_bytes", "tokens_in_sight"]
    for choice in choices:
        alone = run_lm_eval(asked(folder, tasks, choices=(choice,)), tmp_path / choice.method, tiny).rows
        own = rows[rows["method"].isin(["full", choice.method])].reset_index(drop=True)
        pd.testing.assert_frame_equal(own[same], alone[same])
    assert not list((tmp_path / "all" / ".answers").glob("*"))


def test_a_method_that_raises_leaves_the_others_their_rows(tiny, folder, tmp_path, monkeypatch) -> None:
    request = asked(folder, ("kvlab_few_shot",), choices=(H2O, MethodChoice(method="snapkv", budget=0.2)))
    make = cache_maker(tiny)

    def fail(*given):
        raise ZeroDivisionError("of this method")

    def make_broken(choice):
        cache = make(choice)
        if choice.method == "h2o":
            cache.compressed_layers()[0].attend = fail
        return cache

    with monkeypatch.context() as patched:
        patched.setattr(run, "cache_maker", lambda loaded: make_broken)
        with pytest.raises(ZeroDivisionError, match="of this method"):
            run_lm_eval(request, tmp_path, tiny)
    with ResultStore.opened(tmp_path) as store:
        assert store.frame()["method"].tolist() == ["full"] * 3 + ["snapkv"] * 3
    rows = run_lm_eval(request, tmp_path, tiny).rows
    assert rows["method"].tolist() == ["full"] * 3 + ["h2o"] * 3 + ["snapkv"] * 3
    assert (rows[rows["method"] == "h2o"]["batch_rows"] == 1).all()


def test_bad_names_are_one_sentence(tiny, folder, tmp_path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "gone.yaml").write_text(ROLLING.format(data=tmp_path / "gone.jsonl").replace("passages", "gone"))
    for request, said in (
        (asked(tmp_path / "nowhere", ("passages",)), "is no folder"),
        (asked(broken, ("gone",), protocol="simulated"), "cannot load gone"),
        (asked(folder, ("passages",)), "use --protocol simulated"),
        (asked(folder, ("kvlab_few_shot",), metric="f1"), "--metric is one of acc"),
        (asked(folder, ("kvlab_needle",), hold_back=0), "--hold-back 0"),
    ):
        with pytest.raises(UserError, match=said):
            run_lm_eval(request, tmp_path / "out", tiny)
