"""A deliberate fault in an implementation of SnapKV is found and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, DynamicCache
from typer.testing import CliRunner

import kvlab
from kvlab.cli import commands
from kvlab.core.assets import asset_path
from kvlab.core.errors import UserError
from kvlab.trace import open_run
from kvlab.watch.check import check
from kvlab.watch.recorder import watch
from kvlab.watch.recording import read_recording
from kvlab.watch.run_folder import import_recording, load_recorded_model

MINI = str(asset_path("mini"))
BUDGET = 60


@pytest.fixture(scope="module")
def foreign_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return kvlab.load_model(MINI, dtype="float32")


def text_ids(model: Any) -> torch.Tensor:
    text = "The gate opens at nine. A number was written on the wall, and nobody read it for a long time. " * 6
    return torch.tensor([model.tokenizer(text).input_ids])[:, :160]


def snapkv(
    path: Path, foreign: Any, ids: torch.Tensor, window: int = 32, pool: str = "max", beside: bool = False
) -> Path:
    """SnapKV as one might write it: pooled attention of the last queries, the window kept; then two steps."""
    with watch(foreign, title="own SnapKV", path=str(path)), torch.no_grad():
        cache = DynamicCache()
        prompt = ids[:, :-2]
        attentions = foreign(prompt, past_key_values=cache, output_attentions=True).attentions
        for layer, attention in zip(cache.layers, attentions, strict=True):
            _, heads, slots, size = layer.keys.shape
            score = attention[:, :, -window:, :-window].mean(2).view(1, heads, -1, slots - window).mean(2)
            score = F.max_pool1d(score, 7, 1, 3) if pool == "max" else F.avg_pool1d(score, 7, 1, 3)
            top = score.topk(BUDGET if beside else BUDGET - window, -1).indices.sort(-1).values
            kept = torch.cat([top, torch.arange(slots - window, slots).expand(1, heads, -1)], -1)
            index = kept[..., None].expand(-1, -1, -1, size)
            layer.keys = layer.keys.gather(2, index)
            layer.values = layer.values.gather(2, index)
        for at in (-2, -1):
            position = torch.tensor([[ids.shape[1] + at]])
            foreign(ids[:, ids.shape[1] + at : ids.shape[1] + at + 1], past_key_values=cache, position_ids=position)
    return path


def test_an_implementation_that_follows_its_paper_agrees(tmp_path: Path, foreign_model: Any, model: Any) -> None:
    result = check(snapkv(tmp_path / "a.kvlab", foreign_model, text_ids(model)), "snapkv", BUDGET, model)
    assert result.agrees_but_for_ties, result.sentences


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"window": 31}, "window=31"),
        ({"pool": "mean"}, "pooling=average"),
        ({"beside": True}, f"a budget of {BUDGET + 32} slots (window counted otherwise)"),
    ],
)
def test_a_fault_is_found_and_named(
    tmp_path: Path, foreign_model: Any, model: Any, fault: dict[str, Any], named: str
) -> None:
    result = check(snapkv(tmp_path / "a.kvlab", foreign_model, text_ids(model), **fault), "snapkv", BUDGET, model)
    assert not result.agrees_but_for_ties and result.first is not None
    explained = [spec for spec, share in result.explanations if share == 1]
    assert named in explained[0], result.sentences
    assert named in result.sentences[-1] and "explains all of it" in result.sentences[-1]


def ends(path: Path, foreign: Any, ids: torch.Tensor, copies: int = 1) -> Path:
    """The first 40 and the last 20 tokens, which is not what a paper with 4 sinks says; each head `copies` times.

    The second of two holds tokens 1 to 40 in place of the first 40.
    """
    kept = torch.cat([torch.arange(40), torch.arange(ids.shape[1] - 20, ids.shape[1])])
    moved = torch.cat([kept[:40] + 1, kept[40:]])
    with watch(foreign, title="ends", path=str(path)), torch.no_grad():
        cache = DynamicCache()
        foreign(ids, past_key_values=cache)
        for layer in cache.layers:
            for name in ("keys", "values"):
                part = getattr(layer, name)
                each = [part[:, :, kept], part[:, :, moved]][:copies]
                setattr(layer, name, torch.stack(each, 2).flatten(1, 2))
    return path


def test_how_many_first_tokens_are_held_is_found_in_the_recording(
    tmp_path: Path, foreign_model: Any, model: Any
) -> None:
    result = check(ends(tmp_path / "a.kvlab", foreign_model, text_ids(model)), "streaming-llm", BUDGET, model)
    assert "sinks=40" in result.sentences[-1] and "explains all of it" in result.sentences[-1], result.sentences


def test_query_heads_that_choose_for_themselves_are_said(tmp_path: Path, foreign_model: Any, model: Any) -> None:
    recording = ends(tmp_path / "a.kvlab", foreign_model, text_ids(model), copies=2)
    heads = 2 * model.model.config.num_key_value_heads
    result = check(recording, "streaming-llm:sinks=40", BUDGET, model)
    after = result.table[result.table["step"] == 0]
    assert sorted(after["head"].unique()) == list(range(heads))
    assert (after.loc[after["head"] % 2 == 0, "agreement"] == 1).all(), "the first copy of each"
    assert (after.loc[after["head"] % 2 == 1, "common"] == BUDGET - 1).all(), "the second lacks the first token"
    assert result.query_heads == 2 and "the 2 query heads of a KV head hold tokens of their own" in result.sentences[-1]
    _, own = import_recording(recording, tmp_path / "runs", model)
    run = open_run(own)
    assert sorted(run.steps["head"].unique()) == list(range(heads // 2))
    assert "holds keys and values of every query head, 2 for each KV head" in " ".join(run.record.notes)
    gone = run.events[(run.events["layer"] == 0) & (run.events["head"] == 0)]
    assert sorted(gone["source"]) == list(range(40, text_ids(model).shape[1] - 20)), "the first copy is drawn"


def test_a_recording_becomes_a_run_with_the_slots_that_were_held(
    tmp_path: Path, foreign_model: Any, model: Any
) -> None:
    path = snapkv(tmp_path / "a.kvlab", foreign_model, text_ids(model))
    _, folder = import_recording(path, tmp_path / "runs", model)
    run = open_run(folder)
    assert "recorded outside: transformers" in run.record.label
    steps = run.steps
    assert (steps.loc[steps["step"] == 0, "live_slots"] == BUDGET).all()
    assert (steps.loc[steps["step"] == 2, "live_slots"] == BUDGET + 2).all()
    events = run.select("events", 1, 0)
    assert (events["kind"] == "evict").all() and len(events) == run.record.prompt_tokens - BUDGET
    memory = run.memory
    size = 2 * model.model.config.num_key_value_heads * model.model.config.head_dim * 4
    assert (memory.loc[memory["step"] == 0, "allocated_bytes"] == BUDGET * size).all()
    forced = run.tokens[run.tokens["phase"] == "forced"]
    with torch.inference_mode():
        true = model.model(text_ids(model), use_cache=False).logits[0].log_softmax(-1)
    expected = true[-3].gather(0, text_ids(model)[0, -2:-1])
    assert forced["logprob_full"].iloc[0] == pytest.approx(float(expected), abs=1e-3)
    assert (forced["kl"] >= 0).all()


def test_the_model_is_loaded_in_the_type_that_was_recorded(tmp_path: Path) -> None:
    foreign = AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.bfloat16).eval()
    with watch(foreign, path=str(tmp_path / "a.kvlab")), torch.no_grad():
        foreign(torch.arange(3, 60)[None], past_key_values=DynamicCache())
    recording = read_recording(tmp_path / "a.kvlab")
    assert load_recorded_model(recording, MINI).model.dtype is torch.bfloat16
    assert (check(tmp_path / "a.kvlab", "full", 1.0, MINI).table["agreement"] == 1).all()


def test_the_commands(tmp_path: Path, foreign_model: Any, model: Any) -> None:
    runner = CliRunner()
    recording = snapkv(tmp_path / "a.kvlab", foreign_model, text_ids(model), window=31)
    written = runner.invoke(commands, ["watch", "--write", str(tmp_path / "kvlab_watch.py")])
    assert written.exit_code == 0 and "def watch(" in (tmp_path / "kvlab_watch.py").read_text()
    checked = runner.invoke(
        commands,
        [
            "watch",
            "check",
            str(recording),
            "--as",
            "snapkv",
            "--budget",
            "60",
            "--model",
            MINI,
            "--to",
            str(tmp_path / "t.csv"),
        ],
    )
    assert checked.exit_code == 1 and "explains all of it" in checked.output
    assert "agreement" in (tmp_path / "t.csv").read_text()
    imported = runner.invoke(
        commands, ["runs", "import", str(recording), "--runs", str(tmp_path / "runs"), "--model", MINI]
    )
    assert imported.exit_code == 0 and "recorded" in imported.output


def test_bad_recordings_are_refused_in_a_sentence(tmp_path: Path, foreign_model: Any, model: Any) -> None:
    path = snapkv(tmp_path / "a.kvlab", foreign_model, text_ids(model))
    with pytest.raises(UserError, match="no recording"):
        check(Path(__file__), "snapkv", BUDGET, model)
    other = kvlab.load_model(MINI, dtype="float32")
    with torch.no_grad():
        other.model.get_input_embeddings().weight += 1
    with pytest.raises(UserError, match="of another model"):
        check(path, "snapkv", BUDGET, other)
    with pytest.raises(UserError, match="has 1 rows"):
        check(path, "snapkv", BUDGET, model, row=3)
    with watch(foreign_model, path=str(tmp_path / "b.kvlab")), torch.no_grad():
        embeddings = foreign_model.get_input_embeddings()(text_ids(model))
        foreign_model(inputs_embeds=embeddings)
    with pytest.raises(UserError, match="without the tokens"):
        import_recording(tmp_path / "b.kvlab", tmp_path / "runs", model)
