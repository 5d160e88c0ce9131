"""KeepKV's exhibits of runs: what each computes, on rows whose answer is known and on recorded runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from kvlab.core.cache import make_cache
from kvlab.core.choice import MethodChoice
from kvlab.engine.compare import compare
from kvlab.models.load import LoadedModel, load_model
from kvlab.papers import attention_rows
from kvlab.papers.attention_rows import Rows
from kvlab.papers.evidence import kept_rows
from kvlab.papers.exhibit import Choice, Needs
from kvlab.papers.keepkv import attention, merge_effects, merging
from kvlab.papers.registry import find
from kvlab.requests.compare import CompareRequest
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources
from kvlab.trace import Run, open_run
from tests.families import tiny_folder, tiny_model
from tests.papers.claim_frames import six_times
from tests.papers.drawing import drawn
from tests.synthetic.runs import write_synthetic_run

PROMPT = "The harbour lamp was lit at seven; the harbour lamp was lit at eight, and nobody knew who lit it at nine."
RUN_EXHIBITS = ("fig-1", "fig-2a", "fig-2b", "fig-2c", "fig-2d", "fig-3")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("synthetic")
    methods = ("full", "h2o", "pool", "keepkv")
    runs = [open_run(write_synthetic_run(root, method=name, prompt_tokens=120, steps=24)) for name in methods]
    return Sources(root, runs[-1], runs)


@pytest.fixture(scope="module")
def one_head_each(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A tiny model in which every query head has keys of its own."""
    folder = tiny_folder(tmp_path_factory.mktemp("models") / "tiny")
    vocabulary = load_model(str(folder), "cpu", "float32").model.config.vocab_size
    tiny_model("llama", vocab_size=vocabulary, num_key_value_heads=4).save_pretrained(folder)
    return load_model(str(folder), "cpu", "float32")


@pytest.fixture(scope="module")
def recorded(one_head_each: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Real runs at a quarter of the prompt; every threshold lets most tokens merge."""
    root = tmp_path_factory.mktemp("recorded")
    choices = (
        MethodChoice(method="full", budget=1.0),
        MethodChoice(method="kvmerger", budget=0.25, hyper_parameters={"theta": 0.2}),
        MethodChoice(method="keepkv", budget=0.25, hyper_parameters={"threshold": -1.0, "predict": "current"}),
        MethodChoice(method="keepkv", budget=0.25, hyper_parameters={"threshold": -1.0}),
    )
    request = CompareRequest(prompt=PROMPT, choices=choices, max_new_tokens=12)
    runs = [open_run(path) for path in compare(request, root, loaded=one_head_each)]
    return Sources(root, runs[2], runs)


@pytest.mark.parametrize("slug", RUN_EXHIBITS)
def test_every_run_exhibit_is_drawn_from_a_synthetic_comparison(synthetic: Sources, slug: str):
    drawn(find("keepkv", slug), synthetic, Choice(layer=1, head=1))


@pytest.mark.parametrize("slug", RUN_EXHIBITS)
def test_every_run_exhibit_is_drawn_from_a_recorded_comparison(recorded: Sources, slug: str):
    drawn(find("keepkv", slug), recorded, Choice(layer=1, head=2, step=1))


@pytest.mark.parametrize("slug", RUN_EXHIBITS)
def test_without_a_run_the_command_is_named(tmp_path: Path, slug: str):
    found = find("keepkv", slug).draw(Sources(tmp_path), Choice(), "light")
    assert isinstance(found, Needs)
    assert command_line(found.measurement).startswith("kvlab compare")


# figure 1


def test_the_exact_rule_does_not_sag_and_convex_merging_does(recorded: Sources):
    """With a key for every query head the exact rule keeps the attention of every single merge."""
    convex, exact, _ = (merge_effects.merge_groups(run) for run in recorded.runs[1:])
    assert len(exact) > 50
    heavy = exact[exact["before"] > 1e-4]
    assert heavy["sag"].abs().max() < 2e-3
    assert (convex["sag"] > 0).mean() > 0.8
    rows = six_times(*(kept_rows(run, merging.SAG) for run in recorded.runs[1:]))
    assert merging.exact(rows).verdict == "holds"
    assert merging.sags(rows).verdict == "holds"
    assert merging.exact(rows[rows["prompt"] == "0"]).verdict == "not enough to say"  # the same of a single prompt


def test_rules_are_told_apart(recorded: Sources):
    assert [merge_effects.rule_of(run) for run in recorded.runs[1:]] == ["convex", "exact", "predicted"]


def test_runs_that_merged_nothing_of_weight_are_not_judged(synthetic: Sources):
    table = merge_effects.sag_of_runs(synthetic.runs[:2])
    assert table.empty
    rows = six_times(*(kept_rows(run, merging.SAG) for run in synthetic.runs[:2]))
    assert merging.sags(rows).verdict == merging.exact(rows).verdict == "not enough to say"


# figure 2


def rows_of(mass: np.ndarray, prompt: int, first: int = 0) -> Rows:
    return Rows(mass.astype(np.float32), first, prompt)


def test_attention_to_all_alike_is_the_diagonal_and_to_one_the_corner():
    alike, single = np.full((3, 102), 1 / 102), np.zeros((3, 102))
    single[:, 7] = 1
    curve = attention_rows.concentration(Rows(alike, 2, 102))
    np.testing.assert_allclose(curve, np.broadcast_to(attention_rows.SHARES, curve.shape), atol=1e-6)
    assert (attention_rows.concentration(Rows(single, 2, 102))[:, 1:] == 1).all()


def test_tokens_return_when_they_are_attended_and_only_then():
    """Ten prompt tokens, two kept; token 9 is asked for at step 2, a kept one at step 1."""
    mass = np.tile(np.linspace(0.1, 0.01, 13), (4, 1))
    mass[1, 0], mass[2, 9] = 2, 2
    rows = rows_of(mass, 10)
    evicted = attention_rows.to_be_evicted(rows, mass[0, :10])
    assert evicted.nonzero()[0].tolist() == list(range(2, 10))
    table = attention_rows.returning(rows, evicted, "x")
    top_of = {1: {0, 1, 2}, 2: {9, 0, 1}, 3: {0, 1, 2}}  # three of 11, 12 and 13 tokens
    expected = [len(top_of[step] & set(range(2, 10))) / 8 for step in (1, 2, 3)]
    assert table["share"].tolist() == pytest.approx(expected)
    assert table["ever"].tolist() == pytest.approx([1 / 8, 2 / 8, 2 / 8])
    assert table["mass"].tolist() == pytest.approx([mass[step, 2:10].sum() for step in (1, 2, 3)], rel=1e-5)


def test_what_the_run_evicted_is_what_its_events_say(synthetic: Sources, monkeypatch: pytest.MonkeyPatch):
    run = synthetic.runs[1]
    found: dict[str, np.ndarray] = {}

    def keep(rows: Rows, evicted: np.ndarray, kind: str) -> pd.DataFrame:
        found[kind] = evicted
        return pd.DataFrame()

    monkeypatch.setattr(attention_rows, "returning", keep)
    attention_rows.returning_of_head(synthetic.runs[0], run, 0, 1)
    gone = found[attention_rows.OWN]
    events = run.select("events", 0, 1)
    for step in (0, 5, 24):
        sources = events[(events["step"] <= step) & (events["source"] < 120)]["source"]
        assert gone[step].nonzero()[0].tolist() == sorted(sources)


def test_windows_vary_as_all_steps_do_without_locality_and_less_with_it():
    random = np.random.default_rng(1)
    noise = random.random((40, 300))
    local = np.repeat(random.random((5, 300)), 8, 0) + 0.05 * noise
    ratios = [attention.variance_ratios(attention_rows.variances(rows_of(x, 300))) for x in (noise, local)]
    assert ratios[0][0] == pytest.approx(1, abs=0.02)
    assert ratios[1][0] < 0.75 < 0.9 < ratios[1][1]


def test_the_exhibit_names_the_windows_that_are_drawn():
    assert f"windows of {attention.WINDOW} steps" in find("keepkv", "fig-2c").shows


def test_predictors_follow_their_formulas():
    random = np.random.default_rng(2)
    seen = np.arange(20, 50)
    values = random.random((30, 50)) * (np.arange(50) < seen[:, None])
    running = attention_rows.Predictors(50, start=5, alpha=0.8, window=4)
    for row, count in zip(values, seen, strict=True):
        running.add(row, count)
    found = running.predict()
    for token in (0, 30, 48):
        visible = np.flatnonzero(token < seen)
        ages = 29 - np.arange(30)
        used = [row for row in range(5, 30) if row in visible]
        average = sum(0.2 * 0.8 ** ages[row] * values[row, token] for row in used)
        assert found[attention_rows.EMA][token] == pytest.approx(average / (1 - 0.8 ** len(used)))
        assert found[attention_rows.CUMULATIVE][token] == pytest.approx(values[visible, token].mean())
        window = [row for row in range(26, 30) if row in visible]
        assert found[attention_rows.WINDOWED][token] == pytest.approx(values[window, token].mean())
        assert found[attention_rows.LAST][token] == values[-1, token]


def test_the_average_is_the_one_keepkv_keeps(recorded: Sources, one_head_each: LoadedModel):
    """Offline, from recorded rows, the same predicted attention as the method's own score after the prompt."""
    cache = make_cache(one_head_each, "keepkv", 1.0)
    with torch.inference_mode():
        one_head_each.model(one_head_each.encode(PROMPT), past_key_values=cache)
    for layer in (0, 2):
        slots = cache.compressed_layers()[layer].slots
        assert slots is not None
        rows = attention_rows.read_rows(recorded.runs[0], layer, 1)
        running = attention_rows.Predictors(rows.mass.shape[1], max(rows.first + 1 - 32, 0))
        for row in range(rows.first + 1):
            running.add(rows.mass[row].astype(float), rows.visible[row])
        tokens = rows.prompt_tokens
        own = slots.score[0, 1][slots.valid[0, 1]].exp().numpy()
        np.testing.assert_allclose(running.predict()[attention_rows.EMA][:tokens], own[:tokens], atol=2e-3)


def test_a_constant_row_is_predicted_without_error():
    mass = np.tile(np.append(np.full(9, 0.1), np.zeros(3)), (4, 1))
    errors = attention_rows.prediction_errors(rows_of(mass, 9))
    assert errors["error"].max() < 1e-6
    assert set(errors["step"]) == {1, 2, 3}


# figure 3


def test_one_merge_adds_up(recorded: Sources):
    run = recorded.runs[2]
    merge = merge_effects.find_merge(run, 1, 2)
    assert merge is not None and merge.step == 0
    table = merge_effects.merge_parts(run, recorded.runs[0], merge)
    before, after = table[table["role"] != "merged slot"], table.iloc[-1]
    assert before["votes"].sum() == after["votes"]
    assert before["mass"].sum() == pytest.approx(merge.mass_before, rel=1e-4)
    assert after["ema_after"] == pytest.approx(before["ema_after"].sum())
    near = merge_effects.candidates(run, merge)
    chosen = near[near["chosen"]]
    assert len(chosen) == 1
    similarity = merge.events["similarity"].iloc[0]
    assert chosen["similarity"].iloc[0] == pytest.approx(similarity, abs=5e-3)
    assert near["similarity"].max() == pytest.approx(similarity, abs=5e-3)  # the nearest of those that stay


def test_a_merge_is_found_around_the_chosen_token_and_after_the_chosen_step(recorded: Sources):
    run: Run = recorded.runs[3]
    merges = run.select("events", 0, 0)
    merges = merges[merges["target"] >= 0]
    source = int(merges["source"].iloc[3])
    found = merge_effects.find_merge(run, 0, 0, int(merges["step"].iloc[3]), source)
    assert found is not None and source in found.events["source"].tolist()
    later = merge_effects.find_merge(run, 0, 0, 2)
    assert later is not None and later.step >= 2
    line = merge_effects.influence_over_steps(run, later)
    assert line["step"].iloc[0] == later.step
    assert (line["votes"] >= 2).all()


def test_the_influence_of_every_slot_is_that_of_each_looked_at_alone(recorded: Sources):
    """Added up over the slots of a head, followed one by one from the merge that was their last."""
    run: Run = recorded.runs[3]
    found = merging.influence_rows(run).set_index(["layer", "head"]).loc[(0, 0)]
    merges = run.select("events", 0, 0)
    merges = merges[merges["target"] >= 0]
    mass = true_mass = 0.0
    for target, group in merges.groupby("target"):
        steps = sorted(group["step"].unique())
        for step, until in zip(steps, [*steps[1:], 10**6], strict=True):
            one = merge_effects.OneMerge(0, 0, int(step), int(target), group[group["step"] == step])
            line = merge_effects.influence_over_steps(run, one)
            later = line[(line["step"] > step) & (line["step"] <= until)]
            later = later[~later["step"].isin(steps)]
            mass, true_mass = mass + later["mass"].sum(), true_mass + later["true_mass"].sum()
    assert found["mass"] == pytest.approx(mass)
    assert found["true_mass"] == pytest.approx(true_mass)
