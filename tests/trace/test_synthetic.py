"""Synthetic runs agree with themselves, so that a figure which looks wrong on one is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvlab.trace import Run, open_run
from tests.synthetic.runs import write_synthetic_run

METHODS = ("keepkv", "zsmerge", "pool", "h2o", "full")
HALF = 2e-3


@pytest.fixture(params=METHODS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    path = write_synthetic_run(tmp_path, layers=2, heads=3, prompt_tokens=50, steps=12, method=request.param, seed=3)
    return open_run(path, strict=True)


def test_folding_the_events_gives_every_step(run: Run):
    """A slot leaves once, targets live, votes add up, masses sum to one, steps and memory agree with the fold."""
    model = run.record.model
    for layer in range(model.num_hidden_layers):
        for head in range(model.num_key_value_heads):
            fold_one_head(run, layer, head)


def fold_one_head(run: Run, layer: int, head: int) -> None:
    events, steps = run.select("events", layer, head), run.select("steps", layer, head).set_index("step")
    memory = run.select("memory", layer).set_index("step")
    true_mass, slot_mass = (rows.astype(np.float64) for rows in run.attention(layer, head))
    votes: dict[int, float] = {}
    for step, row in steps.iterrows():
        seen = run.record.prompt_tokens + step
        votes |= dict.fromkeys(range(len(votes) if step == 0 else seen - 1, seen), 1.0)
        now = events[events["step"] == step]
        apply(votes, now)
        live = np.zeros(slot_mass.shape[1], bool)
        live[list(votes)] = True
        assert row["live_slots"] == len(votes)
        assert row["tokens_seen"] == seen == memory.loc[step, "logical_tokens"]
        assert row["max_votes"] == max(votes.values())
        assert row["evicted"] + row["merged"] == len(now)
        assert (slot_mass[step][~live] == 0).all()
        assert slot_mass[step].sum() == pytest.approx(1, abs=HALF)
        assert true_mass[step].sum() == pytest.approx(1, abs=HALF)
        assert row[["kept_mass", "merged_true_mass", "regret"]].sum() == pytest.approx(1, abs=1e-4)
        assert row["sag"] == pytest.approx(row["merged_true_mass"] - row["merged_mass"], abs=1e-6)
        if run.record.method in ("keepkv", "zsmerge", "pool"):
            assert sum(votes.values()) == seen


def apply(votes: dict[int, float], events) -> None:
    """Take the step's sources out, give their votes to the targets, check what the rows claim."""
    gained: dict[int, float] = {}
    for event in events.itertuples():
        assert votes.pop(event.source) == event.votes_source
        if event.target >= 0:
            gained[event.target] = gained.get(event.target, 0) + event.votes_source
    for target, more in gained.items():
        rows = events[events["target"] == target]
        assert (rows["votes_target"] == votes[target]).all()
        votes[target] += more
        assert (rows["votes_after"] == votes[target]).all()
        group_before = rows["mass_source"].sum() + rows["mass_target"].iloc[0]
        assert rows["sag"].iloc[0] == pytest.approx(group_before - rows["mass_after"].iloc[0], abs=1e-5)


def test_the_tokens_spell_the_prompt_and_the_continuations(run: Run):
    tokens, record = run.tokens, run.record
    for phase, text in (("prompt", record.prompt), ("forced", record.forced_text), ("free", record.free_text)):
        rows = tokens[tokens["phase"] == phase]
        assert "".join(rows["text"].iloc[1 if phase == "prompt" else 0 :]) == text
        start = 0 if phase == "prompt" else record.prompt_tokens
        assert list(rows["position"]) == list(range(start, start + len(rows)))
    assert (tokens["kl"].dropna() >= 0).all()
    assert tokens.loc[tokens["phase"] == "free", ["logprob_full", "kl"]].isna().all(axis=None)


def test_keys_are_unit_and_shared_by_the_methods_of_a_comparison(tmp_path: Path):
    runs = [open_run(write_synthetic_run(tmp_path, method=method)) for method in ("full", "keepkv")]
    unit, norm = runs[0].keys(1, 1)
    np.testing.assert_allclose(np.linalg.norm(unit.astype(np.float32), axis=1), 1, atol=HALF)
    assert (norm > 0).all()
    np.testing.assert_array_equal(unit, runs[1].keys(1, 1)[0])
    assert runs[0].record.prompt == runs[1].record.prompt
    assert runs[0].record.forced_text == runs[1].record.forced_text


@pytest.mark.parametrize(("level", "tables"), [("off", {"tokens"}), ("light", {"tokens", "steps", "memory"})])
def test_lower_levels_hold_less(tmp_path: Path, level: str, tables: set[str]):
    run = open_run(write_synthetic_run(tmp_path, level=level))
    assert {name for name in ("tokens", "steps", "events", "memory") if len(run.select(name))} == tables
    assert not run.has_arrays
