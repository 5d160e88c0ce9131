"""Text of GGUF files is cut as llama.cpp cuts it by the name in the file; a name that is not known is said.

`llama_cpp_ids.json` holds what llama.cpp's `/tokenize` gave for files with these tokens and merges, which cross the
borders of words, so that each cut shows; and for SmolLM2's own file.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from kvlab.core.choice import MethodChoice
from kvlab.engine.compare import compare
from kvlab.evaluation.harness import prepare_evaluation
from kvlab.evaluation.request import EvalRequest, TaskChoice
from kvlab.models.load import RULES, load_model, set_pre_tokenizer
from kvlab.requests.compare import CompareRequest
from kvlab.trace.reader import open_run
from tests.models.tiny_gguf import tiny_gguf

DATA = json.loads(Path(__file__).with_name("llama_cpp_ids.json").read_text(encoding="utf-8"))
IDS = {name: ids for names, ids in DATA["ids"].items() for name in names.split()}
# Where llama.cpp simplifies the model's own rule: marks that combine with letters, and one space among ideographs.
SIMPLER = dict.fromkeys(("tekken", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), ("\u0301", "\u093f"))
SIMPLER["deepseek-coder"] = ("\u3000",)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path_factory.getbasetemp() / "gguf-cache"))


def tokenizer() -> SimpleNamespace:
    vocab = {token: number for number, token in enumerate(DATA["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in DATA["merges"]]
    return SimpleNamespace(backend_tokenizer=Tokenizer(BPE(vocab=vocab, merges=merges)))


@pytest.mark.parametrize("name", RULES)
def test_ids_are_those_of_llama_cpp(name: str) -> None:
    ours = tokenizer()
    assert set_pre_tokenizer(ours, "gpt2", name) == ""
    wrong = [
        text
        for text, ids in zip(DATA["texts"], IDS[name], strict=True)
        if ours.backend_tokenizer.encode(text).ids != ids and not any(mark in text for mark in SIMPLER.get(name, ()))
    ]
    assert not wrong and len(DATA["texts"]) > 60


def test_rules_differ_in_these_texts() -> None:
    """Else equal ids would say little."""
    assert len(set(map(json.dumps, DATA["ids"].values()))) == len(set(RULES.values()))


@pytest.mark.usefixtures("gguf_here")
@pytest.mark.parametrize(("name", "pieces"), [("smollm", ["ĊĊ", "1", "1"]), ("gpt-2", ["Ċ", "Ċ", "11"])])
def test_the_name_in_a_file_decides(tmp_path: Path, name: str, pieces: list[str]) -> None:
    tiny_gguf(tmp_path / "tiny.gguf", more=lambda writer: writer.add_tokenizer_pre(name))
    loaded = load_model(str(tmp_path / "tiny.gguf"), "cpu")
    backend = loaded.tokenizer.backend_tokenizer
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("\n\n11")] == pieces
    assert loaded.notes == ()


@pytest.mark.usefixtures("gguf_here")
def test_a_name_that_is_not_known_is_said_in_records_and_evaluations(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    tiny_gguf(file, more=lambda writer: writer.add_tokenizer_pre("martian"))
    loaded = load_model(str(file), "cpu")
    (note,) = loaded.notes
    assert "'martian', which kvlab does not know" in note and note.endswith(".")
    request = CompareRequest(
        prompt="w1" * 30,
        model=str(file),
        choices=(MethodChoice(method="window", budget=0.5),),
        max_new_tokens=2,
        chat="no",
    )
    for folder in compare(request, tmp_path / "runs"):
        assert note in open_run(folder).record.notes
    asked = EvalRequest(model=str(file), tasks=(TaskChoice(task="next_token_kl"),), samples=1, chat="no")
    assert note in prepare_evaluation(asked, loaded).notes


@pytest.mark.usefixtures("gguf_here")
def test_a_file_without_a_name_is_said_and_sentencepiece_has_none() -> None:
    assert "names no pre-tokenizer" in set_pre_tokenizer(tokenizer(), "gpt2", None)
    assert set_pre_tokenizer(tokenizer(), "llama", "default") == ""
