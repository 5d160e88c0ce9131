"""A token that the tokenizer knows and the embedding does not is one sentence, wherever text becomes ids."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvlab.core.assets import asset_path
from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.compare import compare
from kvlab.engine.prompt import encode_prompt
from kvlab.evaluation.plan import PlannedPrompt
from kvlab.evaluation.prepare import prepare
from kvlab.evaluation.results.rows import PromptIdentity
from kvlab.models.load import LoadedModel, load_model
from kvlab.requests.compare import CompareRequest
from kvlab.tasks.sample import Sample

TEXT = "It was dark and then <tool> the lamps went out over the harbour."
SENTENCE = r"holds the token '<tool>' \(id [\d,]+\), but the model's embedding has [\d,]+ rows"


@pytest.fixture(scope="module", params=["mini", "mini-half"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shipped model whose tokenizer got a token more."""
    folder = tmp_path_factory.mktemp("models") / "added"
    shutil.copytree(asset_path(request.param), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<tool>"])
    tokenizer.add_special_tokens({"pad_token": "<added-pad>"})
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def added(folder: Path) -> LoadedModel:
    return load_model(str(folder), "cpu")


def test_text_becomes_no_ids(added: LoadedModel) -> None:
    for special in (True, False):
        with pytest.raises(UserError, match=SENTENCE) as error:
            added.encode(TEXT, special)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=SENTENCE):
        encode_prompt(added, TEXT, 4)
    assert added.encode(TEXT.replace("<tool>", "tool")).shape[0] == 1


def test_a_comparison_says_it(folder: Path, tmp_path: Path) -> None:
    request = CompareRequest(
        model=str(folder), prompt=TEXT, choices=(MethodChoice(method="h2o", budget=0.5),), max_new_tokens=2, level="off"
    )
    with pytest.raises(UserError, match=SENTENCE):
        compare(request, tmp_path)


def test_an_evaluation_says_it(added: LoadedModel) -> None:
    """Of a context, of a question and of a text that is forced."""
    plain = {"context": "It was dark", "question": "Was it?", "answers": ["yes"], "metric": "exact_match"}
    forced = {"context": "It was dark", "question": "", "answers": ["and <tool>"], "metric": "bits_per_byte"}
    for one in (plain | {"context": TEXT}, plain | {"question": TEXT}, forced):
        sample = Sample(task="x", index=0, seed=0, length=9, max_new_tokens=0, **one)
        planned = PlannedPrompt(PromptIdentity("x", "", 9, None, 0, 0), lambda sample=sample: sample)
        with pytest.raises(UserError, match=SENTENCE):
            prepare(planned, added)


def test_a_question_of_a_method_says_it(added: LoadedModel) -> None:
    with pytest.raises(UserError, match=SENTENCE):
        make_cache(added, "kvzip", 0.3, ask="<tool>")
