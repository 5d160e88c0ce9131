"""Prompts fed in chunks: the same answers, said in the rows and the table; methods that would change refuse."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from kvlab.cli.eval import evaluate as command
from kvlab.core.errors import UserError
from kvlab.evaluation.harness import evaluate
from kvlab.evaluation.request import EvalRequest
from kvlab.evaluation.results.summary import summarize
from kvlab.evaluation.results.table import summary_table

from .test_harness import request


def asked(methods: str, chunk: int | None, aware: str = "yes") -> EvalRequest:
    made = request(tasks="needle,next_token_kl", methods=methods, budgets="0.3", samples=1, question_aware=aware)
    return made.model_copy(update={"prefill_chunk": chunk})


@pytest.mark.parametrize("aware", ["yes", "no"])
def test_chunks_give_the_same_answers_and_are_told(tiny, tmp_path, aware):
    whole = evaluate(asked("h2o,keepkv", None, aware), tmp_path, loaded=tiny).rows
    chunked = evaluate(asked("h2o,keepkv", 64, aware), tmp_path, loaded=tiny).rows
    assert whole["prediction"].tolist() == chunked["prediction"].tolist()
    assert whole["slots"].tolist() == pytest.approx(chunked["slots"].tolist())
    both = whole[["bits_per_byte", "kl"]].astype(float), chunked[["bits_per_byte", "kl"]].astype(float)
    assert both[0].to_numpy() == pytest.approx(both[1].to_numpy(), rel=1e-3, abs=1e-4, nan_ok=True)
    assert whole["prefill_chunk"].isna().all()
    assert (chunked["prefill_chunk"] == 64).all()
    assert set(whole["key"]).isdisjoint(chunked["key"]), "a chunked row was taken for one that is not"
    summary = summarize(chunked)
    assert summary["difference"].notna().all(), "the full cache of the same prompts was not found"
    assert "chunks of 64 tokens" in str(summary_table(summary).caption)


def test_a_method_that_chunks_would_change_says_so_before_anything_runs(tiny, tmp_path):
    with pytest.raises(UserError, match=r"gvote.*hidden states of the whole prompt"):
        evaluate(asked("h2o,gvote", 64), tmp_path / "results", loaded=tiny)
    assert not (tmp_path / "results").exists()


def test_the_command_refuses_a_chunk_of_nothing(tmp_path):
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--out", str(tmp_path), "--set", "prefill_chunk=0"])
    assert isinstance(result.exception, UserError)
    assert "--set prefill_chunk" in str(result.exception)
