"""People's own files through the harness: what is cut, drawn and wrapped, and that each of these names its own rows."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation import generate, measure
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.plan import make_plan
from kvlab.evaluation.request_parser import parse_request
from kvlab.evaluation.scoring.metrics import rescore
from kvlab.forms.eval_form import sample_job
from tests import benchmark_files as files
from tests.evaluation.test_harness import SETTINGS
from tests.families import CHAT_TEMPLATE

SHORT = "max_new_tokens=6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return files.write_all(tmp_path_factory.mktemp("benchmarks"), 2)


def asked(*data, **changes):
    return parse_request(**SETTINGS | {"tasks": "", "methods": "h2o", "budgets": "0.3", "files": data} | changes)


def test_prompts_are_cut_as_asked_and_a_note_says_so(tiny, folder):
    for cut in ("middle", "end"):
        request = asked(f"longbench={folder}/narrativeqa.jsonl:{SHORT}", max_prompt=300, cut=cut)
        plan = make_plan(request, tiny.tokenizer, 1024)
        assert all(280 <= prompt.make().length <= 300 for prompt in plan.prompts)
        [note] = plan.notes
        assert f"2 of 2 prompts were longer than allowed and lost the {cut} of their context" in note
        said = json.loads(plan.prompts[0].identity.difficulty)
        assert said == {"file": "narrativeqa.jsonl", "max_new_tokens": 6, "max_prompt": 300, "cut": cut}


def test_an_answer_longer_than_the_window_is_one_sentence_that_says_what_to_give(tiny, folder):
    with pytest.raises(UserError, match=r"2,048 tokens for the answer do not fit .*:max_new_tokens=512"):
        make_plan(asked(f"math={folder}/aime24.jsonl:metric=f1"), tiny.tokenizer, 1024)
    with pytest.raises(UserError, match="question alone fills the 8 tokens"):
        make_plan(asked(f"longbench={folder}/qasper.jsonl", max_prompt=8), tiny.tokenizer, 1024)


def test_a_metric_that_cannot_be_computed_is_known_before_the_first_pass(tiny, folder, monkeypatch):
    from kvlab.evaluation.scoring import metrics

    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package math-verify: pip install 'kvlab\[math\]'"):
        make_plan(asked(f"math={folder}/math500.jsonl:max_new_tokens=8"), tiny.tokenizer, 1024)


def test_drawn_answers_are_the_same_again_and_rows_of_their_own(tiny, folder, tmp_path):
    greedy = evaluate(asked(f"helm={folder}/xsum_3shot.jsonl:{SHORT}", max_prompt=200), tmp_path / "a", loaded=tiny)
    hot = f"helm={folder}/xsum_3shot.jsonl:{SHORT}:temperature=2"
    one, again = (
        evaluate(asked(hot, max_prompt=200, batch_rows=rows), tmp_path / out, loaded=tiny).rows
        for rows, out in ((1, "b"), (2, "c"))  # what runs beside it changes nothing
    )
    assert one["prediction"].tolist() == again["prediction"].tolist()
    assert one["prediction"].tolist() != greedy.rows["prediction"].tolist()
    assert not set(one["key"]) & set(greedy.rows["key"])
    other = evaluate(asked(hot, max_prompt=200, seed=8), tmp_path / "d", loaded=tiny).rows
    assert not set(one["key"]) & set(other["key"])


def test_the_seed_of_an_answer_is_the_same_under_every_method(tiny, folder, tmp_path, monkeypatch):
    seeds, plain = [], generate.generate_together

    def spy(loaded, prompts, caches, *rest):
        seeds.extend([rest[4]] * len(caches))
        return plain(loaded, prompts, caches, *rest)

    monkeypatch.setattr(measure, "generate_together", spy)
    data = f"helm={folder}/xsum_3shot.jsonl:{SHORT}:temperature=1"
    evaluate(asked(data, max_prompt=150), tmp_path, loaded=tiny)
    assert len(seeds) == 4  # two prompts, each under full and h2o
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert seeds[0].temperature == 1


def test_a_template_goes_around_what_longbench_puts_it_around(tiny, folder, tmp_path):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE
    chatty = replace(tiny, tokenizer=tokenizer)
    data = [f"longbench={folder}/{name}.jsonl:{SHORT}" for name in ("qasper", "trec")]
    request = asked(*data, max_prompt=250, samples=1)
    rows = evaluate(request, tmp_path / "a", loaded=chatty).rows.set_index("task")
    plain = evaluate(request, tmp_path / "b", loaded=tiny).rows.set_index("task")
    assert rows.loc["longbench/qasper", "chat"].notna().all()
    assert rows.loc["longbench/trec", "chat"].isna().all()
    longer = rows["prompt_tokens"] - plain["prompt_tokens"]
    assert (longer["longbench/qasper"] > 0).all() and (longer["longbench/trec"] == 0).all()
    assert rows.loc["longbench/trec", "key"].tolist() == plain.loc["longbench/trec", "key"].tolist()
    assert not set(rows.loc["longbench/qasper", "key"]) & set(plain.loc["longbench/qasper", "key"])


def test_what_ruler_hides_is_followed_to_the_end(tiny, folder, tmp_path):
    data = f"ruler={folder}/niah_single_2/validation.jsonl:{SHORT}"
    rows = evaluate(asked(data, methods="streaming-llm", budgets="0.1"), tmp_path, loaded=tiny).rows
    by_method = rows.groupby("method")[["hidden_own", "hidden_merged"]].mean()
    assert by_method.loc["full"].tolist() == [1, 0]
    assert by_method.loc["streaming-llm"].tolist() == [0, 0]  # it keeps the start and the end


def test_one_answer_is_scored_by_several_metrics(tiny, folder, tmp_path):
    data = f"helm={folder}/xsum_3shot.jsonl:{SHORT}"
    rows = evaluate(asked(data, max_prompt=150), tmp_path, loaded=tiny).rows
    rows = rows.assign(prediction=[json.loads(answer)[0] for answer in rows["answer"]])
    again = rescore(rows, "rouge_2")
    assert set(again["metric"]) == {"rouge_2"}
    assert again["score"].tolist() == [1] * len(rows)
    assert set(rows["metric"]) == {"rouge_l"}


@pytest.mark.parametrize(
    "data", ["haystack={}/essays.txt", "gsm8k={}/test.jsonl:shots=2:shots_from={}/train.jsonl:" + SHORT]
)
def test_a_row_leads_back_to_its_prompt(tiny, folder, tmp_path, data):
    request = asked(data.replace("{}", str(folder)), lengths="200", depths="0.25", max_prompt=400, samples=1)
    row = evaluate(request, tmp_path, loaded=tiny).rows.iloc[-1].to_dict()
    plain = request.files[0].model_copy(update={"options": {}})
    job = sample_job(row, {plain.path.name: plain})
    contents = [prompt.identity.content for prompt in make_plan(job.request, tiny.tokenizer, 1024).prompts]
    assert row["content"] in contents
