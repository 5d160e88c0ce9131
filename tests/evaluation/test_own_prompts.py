"""Prompts without answers: read from tables and folders, compared with the full cache by text or KL."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import kvlab
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method
from kvlab.engine.forward import end_ids
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.plan import make_plan
from kvlab.evaluation.results.rows import ResultStore
from kvlab.evaluation.scoring.metrics import METRICS, UNSCORED
from kvlab.forms import eval_form
from kvlab.models.load import LoadedModel
from kvlab.results.sources import Sources
from kvlab.tasks.loaders import load_file
from tests.evaluation.test_harness import request
from tests.tasks.document_files import pdf

WORDS = "The quick brown fox jumps over the lazy dog while the band plays on. "


def folder_of(place: Path, *texts: str) -> Path:
    place.mkdir()
    for number, text in enumerate(texts):
        (place / f"{number}.txt").write_text(text)
    return place


def test_a_table_may_leave_answers_out_and_names_groups(tiny: LoadedModel, tmp_path: Path) -> None:
    rows = [
        {"prompt": WORDS, "group": "mail"},
        {"context": WORDS, "question": "Which?", "answer": "fox", "group": "chat", "metric": "exact_match"},
        {"prompt": WORDS, "answer": ""},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    loaded = load_file("prompts", file, tiny.tokenizer)
    found = [(sample.task, sample.metric, sample.answers) for sample in loaded.samples]
    assert found == [("mail", UNSCORED, []), ("chat", "exact_match", ["fox"]), ("mine", UNSCORED, [])]
    assert not loaded.notes
    with pytest.raises(UserError, match=r"mine\.jsonl:1: there is no field 'answer'"):
        load_file("table", file, tiny.tokenizer)


def test_a_folder_is_one_prompt_a_text(tiny: LoadedModel, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "letters", WORDS, " \n", WORDS * 2)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    loaded = load_file("prompts", folder, tiny.tokenizer)
    assert [sample.context for sample in loaded.samples] == [WORDS, WORDS * 2]
    assert [sample.index for sample in loaded.samples] == [0, 1]
    assert loaded.notes == [
        f"{folder / '1.txt'}: left out as empty.",
        f"{folder}: left out, as no text, document or table: picture.png.",
    ]
    (single,) = load_file("prompts", folder / "2.txt", tiny.tokenizer).samples
    assert single.context == WORDS * 2
    with pytest.raises(UserError, match="has no text to use as a prompt"):
        load_file("prompts", folder_of(tmp_path / "empty"), tiny.tokenizer)


def test_a_folder_takes_documents_and_tables_too(tiny: LoadedModel, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "mixed", WORDS)
    (folder / "a.pdf").write_bytes(pdf(["What does the fox do?"]))
    (folder / "b.MD").write_text("# Fox\nIt jumps.")
    lines = [{"prompt": WORDS, "answer": "fox"}, {"prompt": "No answer"}]
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "d.pdf").write_bytes(b"%PDF-1.4 broken")
    with pytest.raises(UserError, match=r"d\.pdf cannot be read"):
        load_file("prompts", folder, tiny.tokenizer)
    loaded = load_file("prompts", folder, tiny.tokenizer, skip_malformed=True)
    found = [(one.index, one.task, one.context.strip()[:12], one.answers) for one in loaded.samples]
    assert found == [
        (0, "mixed", WORDS[:12], []), (1, "mixed", "What does th", []), (2, "mixed", "# Fox\nIt jum", []),
        (3, "c", WORDS[:12], ["fox"]), (4, "c", "No answer", []),
    ]  # fmt: skip
    assert [line.split(" cannot")[0] for line in loaded.skipped] == ["d.pdf"]


def measured(tiny: LoadedModel, folder: Path, out: Path, **asked: object) -> pd.DataFrame:
    options = {"tasks": "", "files": [f"prompts={folder}:max_new_tokens=6"], "methods": "h2o", "budgets": "0.3"}
    return evaluate(request(**(options | asked)), out, loaded=tiny).rows


def test_prompts_without_answers_keep_their_texts_and_have_no_score(tiny: LoadedModel, tmp_path: Path) -> None:
    rows = measured(tiny, folder_of(tmp_path / "mine", WORDS * 2, WORDS * 3), tmp_path / "runs" / "eval" / "own")
    assert rows["score"].isna().all() and rows["error"].isna().all()
    assert rows["prediction"].notna().all()
    safe = kvlab.safe_budget(rows, "text", tolerance=0.9)
    differs = rows.pivot(index="index", columns="method", values="prediction").eval("full != h2o")
    assert safe.table["changed"].tolist() == [differs.sum()]
    # Pages and exhibits that show scores leave them out.
    sources = Sources(tmp_path / "runs")
    assert len(sources.every_evaluation) == 4 and sources.evaluations.empty


def test_a_row_leads_back_to_its_prompt(tiny: LoadedModel, tmp_path: Path) -> None:
    """From a folder of texts, also where KL was measured in place of answers."""
    folder = folder_of(tmp_path / "mine", WORDS * 2, WORDS * 3)
    rows = measured(tiny, folder, tmp_path / "runs" / "eval" / "own", forced=True)
    row = rows[rows["method"] == "h2o"].iloc[-1]
    job = eval_form.sample_job(row.to_dict(), eval_form.known_files(tmp_path / "runs"))
    plan = make_plan(job.request, tiny.tokenizer, 4096)
    (found,) = [prompt.make() for prompt in plan.prompts if prompt.identity.content == job.content]
    assert found.context == WORDS * 3
    assert job.request.choices == (MethodChoice(method="h2o", budget=0.3),)


def test_the_full_caches_text_is_forced_and_its_kl_measured(tiny: LoadedModel, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "mine", WORDS * 3)
    rows = measured(tiny, folder, tmp_path / "kl", forced=True, methods="h2o,streaming-llm").set_index("method")
    assert (rows["metric"] == "kl").all() and (rows["score"] == rows["kl"]).all()
    assert rows.loc["full", "kl"] == pytest.approx(0, abs=1e-6)
    ids = tiny.tokenizer(WORDS * 3)["input_ids"]
    text, full = alone(tiny, ids, "full", 1.0, None)
    assert rows.loc["full", "prediction"] == tiny.tokenizer.decode(text, skip_special_tokens=True).strip()
    for method in ("h2o", "streaming-llm"):
        _, own = alone(tiny, ids, method, 0.3, text)
        expected = np.mean([float((p.exp() * (p - q)).sum()) for p, q in zip(full, own, strict=True)])
        assert rows.loc[method, "kl"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def alone(
    tiny: LoadedModel, ids: list[int], method: str, budget: float, forced: list[int] | None
) -> tuple[list[int], list[torch.Tensor]]:
    """A plain loop with one cache: its text, or the forced one, and the log-probabilities after each of its tokens."""
    cache, text, found = kvlab.make_cache(tiny, make_method(method), budget), list(forced or []), []
    with torch.inference_mode():
        logits = tiny.model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0, -1]
        for place in range(6):
            if forced is None:
                text.append(int(logits.argmax()))
                if place and text[-1] in end_ids(tiny):
                    break
            if place == (5 if forced is None else len(text) - 1):
                break
            logits = tiny.model(torch.tensor([[text[place]]]), past_key_values=cache, use_cache=True).logits[0, -1]
            found.append(torch.log_softmax(logits.float(), -1))
    return text, found


def test_a_metric_that_raises_on_one_prompt_does_not_end_the_others(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fussy(prediction: str, answers: list[str], classes: list[str]) -> float:
        if answers == ["b"]:
            raise KeyError("no such thing")
        return 1.0

    monkeypatch.setitem(METRICS._things, "fussy", fussy)
    file = tmp_path / "mine.jsonl"
    lines = [{"prompt": WORDS, "answer": answer, "metric": "fussy", "max_new_tokens": 2} for answer in "abc"]
    file.write_text("\n".join(map(json.dumps, lines)))
    options = {"tasks": "", "files": [f"prompts={file}"], "methods": "h2o", "budgets": "0.3", "samples": 9}
    result = evaluate(request(**options), tmp_path / "out", loaded=tiny)
    rows = result.rows
    assert len(rows) == 6
    told = [note for note in result.notes if note.startswith("2 of 6 answers have no score")]
    assert len(told) == 1 and told[0].endswith("fussy: KeyError: 'no such thing'")
    broken = rows["index"] == 1
    assert rows.loc[broken, "score"].isna().all() and (rows.loc[~broken, "score"] == 1).all()
    assert set(rows.loc[broken, "error"]) == {"fussy: KeyError: 'no such thing'"}
    with ResultStore.opened(tmp_path / "out") as store:
        assert store.frame()["error"].notna().sum() == 2
    assert kvlab.safe_budget(rows, tolerance=0.9).table["changed"].tolist() == [1]
