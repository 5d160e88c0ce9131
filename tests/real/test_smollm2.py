"""SmolLM2-135M-Instruct, a real chat model: the slow tests of `make real-tests`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvlab.common.answer_match import find_answer
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.methods import registered
from kvlab.engine.compare import compare
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.models.info.packaged_models import PACKAGED, packaged_file
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import CompareRequest
from kvlab.tasks.shipped_samples import shipped_sample
from kvlab.trace.reader import open_run
from tests.families import ON_ANY_MODEL

FILE = packaged_file("smollm2") if os.environ.get("KVLAB_REAL") else None
pytestmark = pytest.mark.skipif(FILE is None, reason="run `make real-tests`, which downloads SmolLM2 (93 MB)")


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model("smollm2", device="cpu")


def test_it_is_transformers_own_model(smollm2: LoadedModel) -> None:
    assert FILE is not None
    theirs = AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=FILE.name, dtype=torch.float32)
    ids = smollm2.encode(shipped_sample("needle_in_a_story").text)[:, :400]
    with torch.inference_mode():
        ours = smollm2.model(ids, past_key_values=make_cache(smollm2, "full")).logits
        torch.testing.assert_close(ours, theirs(ids).logits, rtol=0, atol=1e-3)
    assert smollm2.checksum == PACKAGED["smollm2"].file_checksum and smollm2.quantization == "Q4_1"


def test_its_ids_are_those_of_llama_cpp(smollm2: LoadedModel) -> None:
    known = json.loads((Path(__file__).parents[1] / "models" / "llama_cpp_ids.json").read_text(encoding="utf-8"))
    for text, ids in zip(known["texts"], known["smollm2"], strict=True):
        assert smollm2.encode(text)[0].tolist() == ids, repr(text)


@pytest.mark.parametrize("method", [name for name in registered() if registered()[name].needs_budget is not False])
def test_a_full_budget_changes_nothing(method: str, smollm2: LoadedModel) -> None:
    ids = smollm2.encode("The secret number of the lighthouse is 48213. What is the secret number of the lighthouse?")
    found = []
    for name in ("full", method):
        cache = make_cache(smollm2, name, 1.0, **ON_ANY_MODEL.get(name, {}))
        with torch.inference_mode():
            smollm2.model(ids[:, :-1], past_key_values=cache)
            found.append(smollm2.model(ids[:, -1:], past_key_values=cache).logits[0, -1])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-3)


def test_it_answers_a_needle_and_merging_keeps_what_eviction_loses(tmp_path: Path) -> None:
    sample = shipped_sample("needle_in_a_story")
    choices = tuple(MethodChoice(method=name, budget=0.2) for name in ("exactmerge2", "streaming-llm"))
    request = CompareRequest(
        prompt=sample.text, model="smollm2", choices=choices, max_new_tokens=24, level="light", answer=sample.answer
    )
    answers = {}
    for folder in compare(request, tmp_path):
        record = open_run(folder).record
        answers[record.method] = find_answer(record.free_text or record.forced_text, sample.answer or "")
        assert (record.model.quantization, record.model.name) == ("Q4_1", "smollm2")
    assert answers["full"] and answers["exactmerge2"] and not answers["streaming-llm"]


def test_a_chat_model_is_asked_in_a_chat(tmp_path: Path) -> None:
    request = EvalRequest(model="smollm2", tasks=(TaskChoice(task="needle"),), samples=3, lengths=(512,))
    rows = evaluate(request, tmp_path).rows
    assert set(rows["difficulty"]) == {'{"style":"chat"}'} and rows["chat"].notna().all()
    assert rows["score"].mean() >= 2 / 3
