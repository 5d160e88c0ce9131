"""Evaluations over kept prefixes: rows equal those that read every context, and other questions read nothing again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from kvlab.cli.eval import QUESTIONS, PrefixOptions
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest, FileChoice
from kvlab.library.prefixes import list_prefixes
from kvlab.models.load import LoadedModel, load_model

CHOICES = (MethodChoice(method="keepkv", budget=0.3),)
TIMES = ["seconds", "prompt_seconds", "batch_rows"]
CONTEXTS = (
    "The old house stood by the lake. The key of the lamp is 4471.",
    "A king had three dogs and one silver bell.",
)


@pytest.fixture(scope="module")
def mini() -> LoadedModel:
    return load_model("mini", "cpu")


def request_of(folder: Path, name: str, *questions: str) -> EvalRequest:
    """Every question about every context."""
    rows = [
        {"context": one, "question": ask, "answer": "4471", "max_new_tokens": 3}
        for one in CONTEXTS
        for ask in questions
    ]
    file = folder / f"{name}.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return EvalRequest(files=(FileChoice(form="table", path=file),), choices=CHOICES, question_aware=False)


def test_rows_are_those_of_reading_and_nothing_is_read_again(
    mini: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = request_of(tmp_path, "one", "Which?", "What is the key?"), request_of(tmp_path, "two", "Who?")
    kept = evaluate(first, tmp_path / "kept", mini, prefixes=tmp_path)
    plain = evaluate(first, tmp_path / "plain", mini)
    pd.testing.assert_frame_equal(kept.rows.drop(columns=TIMES), plain.rows.drop(columns=TIMES))
    assert "Contexts: 4 opened from prefixes, 4 read and kept" in kept.notes[-1], "each context once per method"
    files, problems = list_prefixes(tmp_path)
    assert len(files) == 4 and not problems
    expected = evaluate(second, tmp_path / "plain", mini).rows
    monkeypatch.setattr("kvlab.evaluation.several_questions.SharedPrompt.read", lambda *_: pytest.fail("it was read"))
    opened = evaluate(second, tmp_path / "kept", mini, prefixes=tmp_path)
    pd.testing.assert_frame_equal(opened.rows.drop(columns=TIMES), expected.drop(columns=TIMES))

    table = tmp_path / "questions.csv"
    table.write_text("question,answer\nWhere did it stand?,lake\n")
    names = [file.name for file in files if file.header.text_sha256 == files[0].header.text_sha256]
    asked = PrefixOptions(prefix=",".join(names), questions=table, runs=tmp_path).asked(tmp_path / "own")
    own = EvalRequest(question_aware=False).model_copy(update=asked)
    rows = evaluate(own, tmp_path / "own", mini, prefixes=tmp_path).rows
    assert set(rows["method"]) == {"full", "keepkv"} and list(rows["answer"]) == ['["lake"]'] * 2
    assert json.loads((tmp_path / "own" / QUESTIONS).read_text())["context"] in CONTEXTS
    with pytest.raises(UserError, match="of one text"):
        PrefixOptions(prefix=",".join(file.name for file in files), questions=table, runs=tmp_path).asked(tmp_path)


def test_what_cannot_be_kept_is_said(mini: LoadedModel, tmp_path: Path) -> None:
    seen = request_of(tmp_path, "one", "What?").model_copy(update={"question_aware": True})
    with pytest.raises(UserError, match="add --question-aware no"):
        evaluate(seen, tmp_path / "out", mini, prefixes=tmp_path)
    with pytest.raises(UserError, match="belong together"):
        PrefixOptions(prefix="one").asked(tmp_path)
    (tmp_path / "empty.jsonl").write_text('{"answer": "4471"}')
    with pytest.raises(UserError, match="There is no prefix 'one'"):
        PrefixOptions(prefix="one", questions=tmp_path / "empty.jsonl", runs=tmp_path).asked(tmp_path)
