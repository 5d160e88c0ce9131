"""The harness itself on local tasks, without a network; skipped where lm-eval is not installed."""

from __future__ import annotations

import json
import os

import pandas as pd
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -c constraints.txt 'kvlab[lm-eval]'")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import kvlab
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.harness import cache_maker, evaluate
from kvlab.evaluation.lm_eval import run
from kvlab.evaluation.lm_eval.model import KvlabLM
from kvlab.evaluation.lm_eval.own_tasks import write_tasks
from kvlab.evaluation.lm_eval.request import LmEvalRequest
from kvlab.evaluation.lm_eval.rows import Answers
from kvlab.evaluation.lm_eval.run import run_lm_eval
from kvlab.evaluation.request_parser import parse_request
from kvlab.evaluation.results.rows import ResultStore
from tests.evaluation.lmeval_alone import slowly, tokens

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
    theirs = HFLM(pretrained=str(tiny.name), device="cpu", dtype="float32", batch_size=1)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = ["kvlab_few_shot", "kvlab_needle", "kvlab_few_shot_text"]
    expected = simple_evaluate(model=theirs, tasks=tasks, task_manager=manager, bootstrap_iters=0)["samples"]
    seen = []
    monkeypatch.setattr("lm_eval.simple_evaluate", lambda **given: seen.append(simple_evaluate(**given)) or seen[-1])
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

    def never(*given, **named):
        raise AssertionError("run again")

    with monkeypatch.context() as patched:
        patched.setattr(type(tiny.model), "forward", never)
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


def model_of(tiny, folder, method, budget, **fields) -> KvlabLM:
    request = LmEvalRequest(tasks=("any",), **fields)
    make = cache_maker(tiny)
    choice = MethodChoice(method=method, budget=budget)
    return KvlabLM(tiny, None, request, lambda: make(choice), Answers(folder, {"method": method, **fields}))


def scores(model: KvlabLM, context, choices) -> list[tuple[float, bool]]:
    return model._loglikelihood_tokens([((str(context), str(one)), list(context), list(one)) for one in choices])


def equal(found, expected) -> None:
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [total for total, _ in found] == pytest.approx([total for total, _ in expected], abs=2e-4)


@pytest.mark.parametrize(("method", "hold_back"), [("h2o", 1), ("keepkv", 4), ("adakv", 1), ("d2o", 2), ("kvzip", 1)])
def test_choices_that_share_a_cache_score_as_each_with_its_own(tiny, tmp_path, method, hold_back) -> None:
    context, choices = tokens(40, 2), (tokens(3, 5)[1:], tokens(6, 6)[1:], (7,))
    model = model_of(tiny, tmp_path, method, 0.3, hold_back=hold_back)
    made = [cache_maker(tiny)(MethodChoice(method=method, budget=0.3)) for _ in choices]
    expected = [
        slowly(tiny, cache, context, choice, 40 - hold_back) for cache, choice in zip(made, choices, strict=True)
    ]
    equal(scores(model, context, choices), expected)
    (measured,) = model.measured
    assert measured.in_sight == 40 - hold_back and measured.logical_tokens == 40
    assert 0 < measured.prompt_seconds < measured.seconds


def test_with_nothing_held_back_a_choice_of_one_token_shows_no_effect(tiny, tmp_path) -> None:
    context, choices = tokens(60, 1), ((5,), (9,))

    def totals(*given, **fields) -> list[float]:
        return [total for total, _ in scores(model_of(tiny, tmp_path, *given, **fields), context, choices)]

    full = totals("full", 1.0)
    assert totals("h2o", 0.2, hold_back=0) == pytest.approx(full, abs=1e-5)
    assert max(abs(a - b) for a, b in zip(totals("h2o", 0.2), full, strict=True)) > 0.01


@pytest.mark.parametrize("method", ["h2o", "tova", "zsmerge", "keepkv", "cam", "pyramid-pool", "d2o"])
def test_one_pass_is_feeding_token_by_token_from_the_first(tiny, tmp_path, method) -> None:
    context, continuation, fed = tokens(36, 1), tokens(5, 2)[1:], 39
    model = model_of(tiny, tmp_path, method, 0.25, protocol="simulated")
    found = scores(model, context, (continuation,))
    slow = cache_maker(tiny)(MethodChoice(method=method, budget=int(0.25 * fed)))
    slow.settings.text_tokens = fed  # pyramids are cut to the length of the text
    equal(found, [slowly(tiny, slow, context, continuation, 0)])
    assert model.measured[0].logical_tokens == fed
    assert model.measured[0].slots == pytest.approx(slow.memory().live_slots) and model.measured[0].slots < fed


def test_one_pass_with_a_window_is_attention_under_a_band(tiny, tmp_path) -> None:
    """A token attends to itself and the `slots` before it, as it is decided about after it attended."""
    slots, context, continuation = 6, tokens(24, 3), tokens(4, 4)[1:]
    model = model_of(tiny, tmp_path, "window", slots, protocol="simulated")
    ((total, _),) = scores(model, context, (continuation,))
    text = torch.tensor([[*context, *continuation[:-1]]])
    count = text.shape[1]
    distance = torch.arange(count)[:, None] - torch.arange(count)
    band = torch.where((distance >= 0) & (distance <= slots), 0.0, -1e9)[None, None]
    plain = kvlab.load_model(str(tiny.name), device="cpu").model
    plain.set_attn_implementation("eager")
    with torch.inference_mode():
        rows = torch.log_softmax(plain(text, attention_mask=band).logits[0, -3:].double(), -1)
    assert total == pytest.approx(float(rows[torch.arange(3), torch.tensor(continuation)].sum()), abs=2e-4)


def test_each_beam_continues_from_the_prefilled_context(tiny, tmp_path) -> None:
    context = tiny.tokenizer.decode(tokens(40, 8)[1:])
    settings = {"until": ["zzz"], "max_gen_toks": 12}

    def written(hold_back, **options) -> str:
        request = Instance("generate_until", {}, (context, settings | options), 0)
        (text,) = model_of(tiny, tmp_path, "full", 1.0, hold_back=hold_back).generate_until([request])
        return text

    assert written(0, num_beams=3) == written(2, num_beams=3) != written(1)


def test_each_repeat_of_a_sampled_text_is_drawn_anew(tiny, tmp_path) -> None:
    torch.manual_seed(1)
    context = tiny.tokenizer.decode(tokens(30, 1)[1:])
    settings = {"until": ["zzz"], "max_gen_toks": 12, "do_sample": True, "temperature": 1.0}
    asked = [Instance("generate_until", {}, (context, settings), 0)] * 4
    assert len(set(model_of(tiny, tmp_path, "h2o", 0.3).generate_until(asked))) == 4


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


def test_bad_names_are_one_sentence(tiny, folder, tmp_path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "gone.yaml").write_text(ROLLING.format(data=tmp_path / "gone.jsonl").replace("passages", "gone"))
    for request, said in (
        (asked(tmp_path / "nowhere", ("passages",)), "is no folder"),
        (asked(broken, ("gone",), protocol="simulated"), "cannot load gone"),
        (asked(folder, ("passages",)), "use --set protocol=simulated"),
        (asked(folder, ("kvlab_few_shot",), metric="f1"), "--set metric is one of acc"),
        (asked(folder, ("kvlab_needle",), hold_back=0), "--set hold_back=0"),
    ):
        with pytest.raises(UserError, match=said):
            run_lm_eval(request, tmp_path / "out", tiny)
