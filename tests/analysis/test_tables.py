"""Counts, sums and means over the recorded tables say what the tables say."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from app.navigation.selection import runs_words
from kvlab.trace import Run, open_run
from kvlab.views import compare as figures
from kvlab.views import merges, sag
from kvlab.views.frames import compare, memory
from kvlab.views.frames.lineage import fold
from kvlab.views.merges import votes_distribution
from tests.synthetic.runs import write_synthetic_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    root = tmp_path_factory.mktemp("runs")
    made = {
        method: open_run(write_synthetic_run(root, method=method, layers=2, heads=2, prompt_tokens=80, steps=12))
        for method in ("full", "h2o", "keepkv", "pool")
    }
    for level in ("light", "off"):
        path = write_synthetic_run(root, method="zsmerge", level=level, comparison_id=level, prompt_tokens=40, steps=4)
        made[level] = open_run(path)
    return made


@pytest.mark.parametrize("method", ["h2o", "keepkv", "pool"])
def test_event_counts_add_up_and_agree_with_the_steps(runs: dict[str, Run], method: str, tmp_path: Path):
    run = runs[method]
    over_steps = merges.events_over_steps_frame(run)
    assert over_steps["count"].sum() == len(run.events)
    by_head = merges.events_by_head_frame(run)
    assert by_head[["evict", "merge", "pool"]].to_numpy().sum() == len(run.events)
    shape = {"layers": 2, "heads": 2, "prompt_tokens": 80, "steps": 12}
    light = open_run(write_synthetic_run(tmp_path, method=method, level="light", **shape))
    counted = merges.events_over_steps_frame(light).groupby("step")["count"].sum()
    assert counted.to_dict() == over_steps.groupby("step")["count"].sum().to_dict()


def test_final_votes_are_the_votes_of_the_fold(runs: dict[str, Run]):
    run = runs["keepkv"]
    every = []
    for layer, head in product(range(2), range(2)):
        votes = fold(run.select("events", layer, head), run.select("steps", layer, head)).votes(12)
        merged = Counter(votes[votes > 1].tolist())
        spread = merges.votes_distribution_frame(run, layer, head)
        assert merged and dict(zip(spread["votes"], spread["slots"], strict=True)) == merged
        every.append(merged)
    spread = merges.votes_distribution_frame(run)
    assert dict(zip(spread["votes"], spread["slots"], strict=True)) == sum(every, Counter())


def test_votes_that_are_all_large_fill_the_axis():
    axis = votes_distribution(pd.DataFrame({"votes": [440, 451, 457], "slots": [3, 9, 1]})).layout.xaxis
    assert 430 < axis.range[0] < 440 < 457 < axis.range[1] < 460
    assert (axis.range[1] - axis.range[0]) / axis.dtick < 25, "every tick has room"


def test_the_mass_balance_is_that_of_each_group(runs: dict[str, Run]):
    table = merges.mass_balance_frame(runs["keepkv"])
    assert np.allclose(table["mass_before"] - table["mass_after"], table["sag"], atol=1e-3)
    assert table["sag"].abs().is_monotonic_decreasing
    assert len(table) == len(runs["keepkv"].events.drop_duplicates(["step", "layer", "head", "target"]))
    assert merges.mass_balance_frame(runs["h2o"]).empty


def test_similarity_counts_every_merge_once(runs: dict[str, Run]):
    assert merges.similarity_distribution_frame(runs["keepkv"])["count"].sum() == len(runs["keepkv"].events)
    assert merges.similarity_distribution_frame(runs["h2o"]).empty


def test_sag_of_one_head_and_of_all(runs: dict[str, Run]):
    steps = runs["keepkv"].steps
    expected = steps[(steps["layer"] == 1) & (steps["head"] == 0)].sort_values("step")
    one = sag.over_steps(runs["keepkv"], 1, 0)
    assert np.allclose(one["sag"], expected["sag"])
    every = sag.over_steps(runs["keepkv"])
    assert every["guard_activations"].sum() == steps["guard_activations"].sum()
    assert np.allclose(every["sag"], steps.groupby("step")["sag"].mean())
    assert len(sag.loss_by_head(runs["keepkv"])) == 4
    assert sag.totals(steps)["merged"] == steps["merged"].sum()
    assert sag.has_shadow(steps)
    assert not sag.has_shadow(runs["light"].steps)
    assert not sag.has_shadow(runs["off"].steps)


def test_memory_adds_up_the_layers(runs: dict[str, Run]):
    run = runs["keepkv"]
    table = memory.over_steps(run.memory, run.record)
    assert table["live_bytes"].tolist() == run.memory.groupby("step")["live_bytes"].sum().tolist()
    assert (table["live_bytes"] <= table["allocated_bytes"]).all()
    assert (table["allocated_bytes"] <= table["peak_bytes"]).all()
    per_token = memory.full_bytes_per_token(run.record)
    model = run.record.model
    assert per_token == 2 * model.num_key_value_heads * model.head_dim * memory.DTYPE_BYTES[model.dtype]
    assert table["full_bytes"].iloc[0] == 80 * 2 * per_token
    budgets = memory.budgets_by_layer(run.steps)
    assert (budgets["share"] <= 1).all()
    assert len(budgets) == 4


def test_the_headline_compares_with_the_full_cache(runs: dict[str, Run]):
    chosen = [runs["full"], runs["h2o"], runs["keepkv"]]
    table = compare.headline(chosen).set_index("method")
    assert table.loc["full", "live_ratio"] == 1
    assert table.loc["full", "speed_ratio"] == 1
    assert table.loc["keepkv", "live_ratio"] < 0.5
    forced = runs["keepkv"].tokens.query("phase == 'forced'")
    assert table.loc["keepkv", "mean_kl"] == pytest.approx(forced["kl"].mean())
    assert table.loc["keepkv", "top1_agreement"] == pytest.approx(forced["top1_agree"].astype(float).mean())
    assert pd.isna(table.loc["full", "first_divergence"])
    (group,) = compare.rivals_at_same_bytes(table.reset_index())
    assert group["mean_kl"].is_monotonic_increasing
    assert set(group["method"]) == {"h2o", "keepkv"}


def test_runs_that_end_beyond_their_budget_are_named():
    """128 tokens generated on top of 139 slots, one token that waits, and a run without steps."""

    def run(label: str, slots: tuple[int, int], every: int = 1) -> SimpleNamespace:
        rows = [(step, head, 139 + step * slots[head] // 128, 140) for step in (0, 128) for head in (0, 1)]
        steps = pd.DataFrame(rows, columns=["step", "head", "live_slots", "budget_slots"])
        return SimpleNamespace(
            record=SimpleNamespace(method=label, budget=140, label=label, compress_every=every), steps=steps
        )

    absent = run("off", (0, 0))
    absent.steps = absent.steps.head(0)
    found = compare.beyond_budget([run("keeps", (128, 126)), run("holds", (1, 1)), run("waits", (2, 2), 2), absent])
    assert found.to_dict("records") == [{"label": "keeps", "slots": 266.0, "budget": 140.0}]
    said = figures.caption_beyond_budget(found)
    assert "exceed the budget" in said
    assert "keeps 266 slots for 140" in said
    assert figures.caption_beyond_budget(found.head(0)) == ""


def test_only_runs_of_about_the_same_bytes_are_rivals():
    rows = [("full", 1000, 0.0), ("a", 100, 0.3), ("b", 105, 0.1), ("c", 150, 0.2), ("d", 200, 0.4), ("e", 210, 0.5)]
    table = pd.DataFrame(rows, columns=["method", "live_bytes", "mean_kl"])
    assert [group["method"].tolist() for group in compare.rivals_at_same_bytes(table)] == [["b", "a"], ["d", "e"]]
    assert compare.rivals_at_same_bytes(table.head(2)) == []


def test_without_a_full_run_the_ratio_is_computed_from_the_model(runs: dict[str, Run]):
    row = compare.headline([runs["keepkv"]]).iloc[0]
    run = runs["keepkv"]
    last = memory.over_steps(run.memory, run.record).iloc[-1]
    assert row["live_ratio"] == pytest.approx(last["live_bytes"] / last["full_bytes"])
    assert row["speed_ratio"] is None


def test_runs_without_tables_are_compared_by_what_they_have(runs: dict[str, Run]):
    table = compare.headline([runs["off"], runs["light"]])
    assert table["mean_kl"].notna().all()
    assert pd.isna(table["live_bytes"].iloc[0])
    assert compare.memory_over_steps([runs["off"]]).empty


def test_the_first_divergence_counts_from_one():
    def tokens(own: list[int], full: list[int]) -> pd.DataFrame:
        rows = [("free", number) for number in own] + [("forced", number) for number in full]
        return pd.DataFrame(rows, columns=["phase", "id"])

    assert compare.first_divergence(tokens([1, 2, 3], [1, 2, 3])) is None
    assert compare.first_divergence(tokens([1, 9, 3], [1, 2, 3])) == 2
    assert compare.first_divergence(tokens([1, 2], [1, 2, 3])) == 3
    assert compare.first_divergence(tokens([], [1])) is None


def test_along_the_text_is_one_row_a_run_and_token(runs: dict[str, Run]):
    chosen = [runs["h2o"], runs["keepkv"]]
    table = compare.along_text(chosen)
    assert len(table) == 24
    keep = table[table["method"] == "keepkv"]
    assert keep["extra_nll"].iloc[-1] == pytest.approx((keep["nll"] - keep["nll_full"]).sum(), rel=1e-5)
    assert keep["agreement"].between(0, 1).all()


def test_equal_labels_are_told_apart(runs: dict[str, Run]):
    assert compare.unique_labels([runs["h2o"], runs["h2o"], runs["full"]]) == [
        "h2o #1",
        "h2o #2",
        "full",
    ]


@pytest.mark.parametrize(
    ("budget", "promised"),
    [(0.25, 20), (30, 30), ("25%B", 20), ("2KiB", None)],
)
def test_bytes_are_held_against_those_of_the_budget(
    runs: dict[str, Run], budget: float | int | str, promised: int | None
):
    """Of a prompt of 80 tokens; by hand: so many tokens' keys and values in every layer."""
    run = runs["h2o"]
    words = {0.25: "25 %", 30: "30 slots", "25%B": "25 % of the bytes", "2KiB": "2 KiB"}[budget]
    record = run.record.model_copy(update={"budget": budget, "label": f"h2o {words}"})
    model = record.model
    token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * memory.DTYPE_BYTES[model.dtype]
    allotted = 2048 if promised is None else promised * token
    live = run.memory[run.memory["step"] == run.memory["step"].max()]["live_bytes"].sum()
    assert record.prompt_tokens == 80
    assert compare.over_budget(Run(run.path, record)) == pytest.approx(live / allotted - 1)


def test_a_method_that_takes_no_budget_is_above_none(runs: dict[str, Run]):
    own = runs["h2o"].record.model_copy(update={"method": "gvote", "label": "gvote", "budget": 1.0})
    assert compare.over_budget(Run(runs["h2o"].path, own)) is None
    assert compare.over_budget(runs["full"]) is None
    table = compare.headline([runs["full"], runs["h2o"]])
    assert table["over_budget"].isna().tolist() == [True, False]


def test_the_bar_names_runs_by_their_budgets(runs: dict[str, Run]):
    other = {"method": "gvote", "label": "gvote", "budget": 1.0, "run_id": "other"}
    own = runs["keepkv"].record.model_copy(update=other)
    shown = [runs["full"], runs["h2o"], runs["keepkv"], Run(runs["keepkv"].path, own)]
    share = compare.headline(shown)["live_ratio"].iloc[-1]
    words = runs_words(shown)
    assert words == f"4 runs: 2 at 25 % (h2o, keepkv), gvote at its own ({100 * share:.2g} %), full cache"
    assert runs_words(shown[:1]) == "one run: full cache"
