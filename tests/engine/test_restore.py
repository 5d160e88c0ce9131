"""What the search finds restores the answer, also when the run is made from the start; what failed does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.core.choice import MethodChoice
from kvlab.core.contract.sparse_attention import Chosen, Held, Index, SparseAttention
from kvlab.core.errors import UserError
from kvlab.core.methods.sparse_attention import SPARSE_ATTENTIONS
from kvlab.core.methods.sparse_attention.selection import of_sets
from kvlab.engine import compare
from kvlab.engine.restore import restore
from kvlab.models.load import load_model
from kvlab.requests.compare import CompareRequest, RestoreRequest
from kvlab.tasks.shipped_samples import shipped_samples
from kvlab.trace import open_run
from kvlab.trace.record import choice_of, model_fields
from kvlab.trace.restore_results import RestoreResult, load_result, result_path, save_result
from kvlab.views.frames.restore import budget_sentence, sentence

SAMPLE = next(sample for sample in shipped_samples() if sample.name == "needle_in_a_story")
LINES = SAMPLE.text.splitlines()
PLACE = next(number for number, line in enumerate(LINES) if "48213" in line)
PROMPT = "\n".join([LINES[PLACE][LINES[PLACE].index("hung upon pegs") :], *LINES[PLACE + 1 : PLACE + 4], *LINES[-2:]])
NEW = 8


@pytest.fixture(scope="module")
def mini():
    return load_model("mini")


@pytest.fixture(scope="module")
def made(mini, tmp_path_factory):
    """Runs of mini over a short prompt with a needle; its methods at a budget that loses it."""
    root = tmp_path_factory.mktemp("runs")
    methods = ("streaming-llm", "keepkv", "full")
    request = CompareRequest(
        prompt=PROMPT,
        choices=tuple(MethodChoice(method=name, budget=0.1 if name != "full" else 1.0) for name in methods),
        max_new_tokens=NEW,
        level="light",
        answer="48213",
        facts=("The secret number of the garden is 48213.",),
    )
    return root, compare(request, root, loaded=mini)


def found_of(root: Path, path: Path, mini, **options) -> RestoreResult:
    file = restore(RestoreRequest(run_id=path.name, **options), root, loaded=mini)
    return RestoreResult.model_validate_json(file.read_bytes())


@pytest.fixture(scope="module")
def found(made, mini) -> RestoreResult:
    """What a search finds for streaming-llm."""
    root, paths = made
    return found_of(root, paths[0], mini)


def test_every_set_found_restores_the_answer_in_a_run_made_from_the_start(made, found, mini, tmp_path):
    record = open_run(made[1][0]).record
    assert "48213" not in found.text_before and found.reruns <= found.most_reruns
    restoring = [one for one in found.found if one.restores]
    assert {"tokens", "reading heads", "heads"} <= {one.search for one in restoring}
    choices = tuple(choice_of(record).model_copy(update={"returned": one.returned}) for one in restoring)
    again = CompareRequest(prompt=PROMPT, choices=choices, max_new_tokens=NEW, level="light", **model_fields(record))
    for one, path in zip(restoring, compare(again, tmp_path, loaded=mini)[1:], strict=True):
        run = open_run(path)
        assert "48213" in run.record.free_text and run.record.free_text == one.text
        assert run.record.label == f"streaming-llm 10 % {one.returned.description}"
        kl = run.tokens[run.tokens["phase"] == "forced"]["kl"]
        assert kl.tolist() == pytest.approx(one.kl, abs=1e-4) and sum(one.kl) < sum(found.kl_before)
        slots = run.steps[run.steps["step"] == 0]["live_slots"].sum()
        assert slots - found.slots == one.slots


def test_a_larger_budget_is_found_by_runs_made_from_the_start(made, found, mini, tmp_path):
    """The run answers right at the budget that is named, and wrong at the one below."""
    record = open_run(made[1][0]).record
    needed = found.budget
    assert needed is not None and 0.1 <= needed.wrong_at < needed.right_at <= 1
    assert needed.right_at - needed.wrong_at <= 0.0101 and 1 <= needed.tried <= 7
    budgets = [share for share in (needed.right_at, needed.wrong_at) if 0.1 < share < 1]
    choices = tuple(choice_of(record).model_copy(update={"budget": share}) for share in budgets)
    again = CompareRequest(prompt=PROMPT, choices=choices, max_new_tokens=NEW, level="light", **model_fields(record))
    for share, path in zip(budgets, compare(again, tmp_path, loaded=mini)[-len(budgets) :], strict=True):
        run = open_run(path)
        assert ("48213" in run.record.free_text) == (share == needed.right_at)
        if share == needed.right_at and needed.of_head is not None:
            steps = run.select("steps", *found.reader).query("step == 0")
            assert steps["live_slots"].item() / record.prompt_tokens == pytest.approx(needed.of_head)
    assert "budget" in budget_sentence(found) and "%" in budget_sentence(found)
    old = found.model_dump(exclude={"budget"})
    assert budget_sentence(RestoreResult.model_validate(old)) == "", "of an older version"


def test_taking_anything_out_of_what_is_found_loses_the_answer_again(made, found, mini, tmp_path):
    record = open_run(made[1][0]).record
    heads = next(one for one in found.found if one.search == "reading heads")
    assert heads.complete and heads.restores
    assert heads.returned.heads and len(heads.returned.heads) > 1
    fewer = [
        heads.returned.model_copy(update={"heads": tuple(at for at in heads.returned.heads if at != out)})
        for out in heads.returned.heads
    ]
    choices = tuple(choice_of(record).model_copy(update={"returned": back}) for back in fewer)
    again = CompareRequest(prompt=PROMPT, choices=choices, max_new_tokens=NEW, level="off")
    for path in compare(again, tmp_path, loaded=mini)[1:]:
        assert "48213" not in open_run(path).record.free_text


def test_a_search_keeps_to_its_reruns_says_so_finds_the_same_twice_and_is_loaded_again(made, mini):
    root, paths = made
    few, again = (found_of(root, paths[0], mini, most_reruns=3) for _ in range(2))
    assert few.reruns == 3 and few.ending == "All 3 reruns were used."
    assert few.found and not all(one.complete for one in few.found)
    assert few.model_copy(update={"seconds": 0.0}) == again.model_copy(update={"seconds": 0.0})
    assert load_result(root, few.comparison_id, few.run_id) == again


def test_a_stop_keeps_what_was_found(made, mini):
    root, paths = made
    seen = []
    asked = RestoreRequest(run_id=paths[0].name)
    stop = lambda: any("reading heads" in stage for stage in seen)  # noqa: E731
    path = restore(asked, root, loaded=mini, progress=lambda told: seen.append(told.stage), cancelled=stop)
    found = RestoreResult.model_validate_json(path.read_bytes())
    assert [one.search for one in found.found] == ["tokens"] and found.ending.startswith("Stopped")
    assert "rerun 1 of at most 40" in seen[1] and any("s left" in stage for stage in seen)


def test_a_method_that_merges_is_asked_whether_merging_did_it(made, mini):
    root, paths = made
    found = found_of(root, paths[1], mini, most_reruns=12)
    assert {"evict", "apart"} <= {one.search for one in found.found}


HIDDEN = range(14, 20)  # the tokens of the answer in the prompt


class Blind(SparseAttention):
    """Reads every slot but those of the tokens `HIDDEN`, in layers 2 and later."""

    name = "blind"

    def choose(self, query: Tensor, held: Held, index: Index) -> Chosen:
        hidden = torch.isin(held.position, torch.tensor(HIDDEN)) & torch.tensor(held.layer > 1)
        return of_sets((held.valid() & ~hidden)[:, :, None])


def test_slots_whose_not_being_read_lost_the_answer_are_named(mini, tmp_path, monkeypatch):
    """Nothing is evicted; made again with what was found, the answer is there, and read where it was not."""
    monkeypatch.setitem(SPARSE_ATTENTIONS._things, "blind", Blind)
    asked = {"prompt": PROMPT, "max_new_tokens": 8, "level": "off", "answer": "48213"}
    asked["facts"] = ("The secret number of the garden is 48213.",)
    choice = MethodChoice(method="sparse", budget=1.0, hyper_parameters={"read": "blind"})
    path = compare(CompareRequest(choices=(choice,), **asked), tmp_path, loaded=mini)[-1]
    found = found_of(tmp_path, path, mini, most_reruns=16)
    assert "48213" not in found.text_before
    by_name = {one.search: one for one in found.found}
    assert list(by_name) == ["unread fact", "unread heads", "reading everything"], "nothing was evicted"
    fact, heads = by_name["unread fact"], by_name["unread heads"]
    assert fact.restores and set(fact.returned.tokens) <= set(HIDDEN) and fact.slots == 0
    assert heads.restores and heads.returned.tokens == fact.returned.tokens
    assert {layer for layer, _ in heads.returned.heads} <= {2, 3, 4, 5}, "others read them anyway"
    assert "left out “" in sentence(found, open_run(path))
    back = choice.model_copy(update={"returned": heads.returned})
    again = compare(CompareRequest(choices=(back,), **asked), tmp_path / "again", loaded=mini)[-1]
    assert open_run(again).record.free_text == heads.text and "48213" in heads.text
    whole = CompareRequest(choices=(MethodChoice(method="h2o", budget=0.5, returned=fact.returned),), **asked)
    with pytest.raises(UserError, match="reads every slot already"):
        compare(whole, tmp_path, loaded=mini)


def test_without_an_answer_the_full_caches_text_counts(tiny_model_folder: Path, tmp_path: Path):
    choices = (MethodChoice(method="h2o", budget=0.1), MethodChoice(method="full", budget=1.0))
    text = "Alice was beginning to get very tired of sitting by her sister on the bank. " * 2
    asked = {"prompt": text, "model": str(tiny_model_folder), "max_new_tokens": 8, "level": "light"}
    request = CompareRequest(choices=choices, **asked)
    full, h2o = (open_run(path) for path in sorted(compare(request, tmp_path), key=lambda path: "h2o" in path.name))
    texts = [run.tokens[run.tokens["phase"] == "free"]["id"].tolist() for run in (full, h2o)]
    assert texts[0] != texts[1], "a budget that changes the text"
    found = RestoreResult.model_validate_json(restore(RestoreRequest(run_id=h2o.record.run_id), tmp_path).read_bytes())
    assert not found.expected and found.found[-1].restores
    assert found.found[-1].text.startswith(found.answer)


@pytest.mark.parametrize(("which", "said"), [(2, "full cache itself")])
def test_what_cannot_be_looked_into_is_one_sentence(made, mini, which: int, said: str):
    root, paths = made
    with pytest.raises(UserError, match=said):
        restore(RestoreRequest(run_id=paths[which].name), root, loaded=mini)


def test_a_damaged_file_is_one_sentence(made, found):
    root, _ = made
    save_result(root, found)
    result_path(root, found.comparison_id, found.run_id).write_text("{")
    with pytest.raises(UserError, match="is damaged: remove it"):
        load_result(root, found.comparison_id, found.run_id)
