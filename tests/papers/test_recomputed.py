"""Numbers of the pages, computed again from the files of a recorded comparison: pandas, numpy and safetensors, and none
of kvlab's own arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from kvlab.core.choice import MethodChoice
from kvlab.engine.compare import compare
from kvlab.papers import scorecard as cards
from kvlab.papers.keepkv import merging
from kvlab.papers.registry import EXHIBITS
from kvlab.papers.scorecard import claims_by_model
from kvlab.requests.compare import CompareRequest
from kvlab.results.sources import Sources
from kvlab.results.verdict import verdict_sentence
from kvlab.trace.reader import Run, open_run
from kvlab.views import autopsy as autopsy_figures
from kvlab.views import compare as compare_figures
from kvlab.views import memory as memory_figures
from kvlab.views.frames import autopsy
from kvlab.views.frames import compare as comparison
from kvlab.views.memory import memory_stack_frame

STEPS, CHOSEN = 10, (40, 46)
KEEPKV = {"predict": "current", "per_head_mass": True}
METHODS = (("snapkv", {}), ("keepkv", KEEPKV), ("kvzip", {}), ("exactmerge2", {}), ("zsmerge", {}))
SHOWN = ("keepkv/fig-1", "zsmerge/fig-1", "kvmerger/fig-2", "keepkv/fig-2d")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = Path(__file__).parents[2] / "assets" / "prompts" / "samples" / "needle_in_a_story.txt"
    choices = [MethodChoice(method=name, budget=0.2, hyper_parameters=options) for name, options in METHODS]
    folder = tmp_path_factory.mktemp("runs")
    prompt = text.read_text(encoding="utf-8")[:1000]
    compare(CompareRequest(prompt=prompt, model="mini", choices=choices, max_new_tokens=STEPS), folder)
    return folder


@pytest.fixture(scope="module")
def runs(root: Path) -> dict[str, Run]:
    opened = [open_run(path) for path in sorted(root.glob("2*"))]
    return {run.record.method: run for run in opened}


def table(run: Run, name: str) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(file) for file in sorted((run.path / name).glob("*.parquet"))], ignore_index=True)


def attention(run: Run, layer: int) -> dict[str, np.ndarray]:
    return load_file(run.path / "arrays" / f"attention-layer-{layer:03d}.safetensors")


# Full cache and nothing dropped.


def test_the_full_caches_curve_is_that_of_its_own_run(runs: dict[str, Run]) -> None:
    run, full = runs["snapkv"], runs["full"]
    fates = autopsy.autopsy(run, CHOSEN)
    chosen = sorted(fates["token"].unique())
    apart = 0.0
    for layer, head in ((1, 0), (3, 1), (5, 0)):
        drawn = autopsy_figures.attention_to_span(run, layer, head, CHOSEN, full)
        its = attention(full, layer)["true_mass"][:, head][:, chosen].astype(np.float64).sum(1)
        own = attention(run, layer)["true_mass"][:, head][:, chosen].astype(np.float64).sum(1)
        np.testing.assert_allclose(drawn["full"], its[: len(drawn)], atol=1e-6)
        np.testing.assert_allclose(drawn["true"], own[: len(drawn)], atol=1e-6)
        apart = max(apart, float(np.abs(its - own).max()))
        figure = autopsy_figures.needle_mass(drawn)
        lines = {trace.name.partition(":")[0]: np.asarray(trace.y, float) for trace in figure.data}
        np.testing.assert_allclose(lines["full cache"], its[: len(drawn)], atol=1e-6)
        np.testing.assert_allclose(lines["this run with nothing dropped"], own[: len(drawn)], atol=1e-6)
        assert not np.isnan(drawn["full"]).any()
    assert apart > 1e-3, "the two differ, so that drawing one for the other would be seen"


def test_in_the_full_caches_run_slots_and_tokens_are_the_same(runs: dict[str, Run]) -> None:
    masses = attention(runs["full"], 2)
    np.testing.assert_allclose(masses["true_mass"].astype(float), masses["slot_mass"].astype(float), atol=2e-3)


def test_without_the_full_caches_attention_the_figure_says_so(runs: dict[str, Run]) -> None:
    run = runs["snapkv"]
    drawn = autopsy_figures.attention_to_span(run, 3, 1, CHOSEN)
    assert drawn["full"].isna().all()
    assert not any(trace.name.startswith("full cache") for trace in autopsy_figures.needle_mass(drawn).data)
    caption = autopsy_figures.caption_needle_mass(drawn)
    assert caption.startswith("When this run, with nothing dropped, would look at the chosen text most")


def test_another_text_is_not_taken_for_the_full_caches(runs: dict[str, Run]) -> None:
    run, full = runs["snapkv"], runs["full"]
    words = full.tokens.assign(id=full.tokens["id"].where(full.tokens["position"] != 7, 5))
    other = SimpleNamespace(tokens=words, attention=full.attention, attention_every=1)
    assert autopsy_figures.attention_to_span(run, 3, 1, CHOSEN, other)["full"].isna().all()


# Peak of each step.


def uncompressed(run: Run) -> pd.Series:
    """Bytes of keys and values of all tokens at each step, from the model's shape."""
    shape = json.loads((run.path / "run.json").read_text())["model"]
    token = 2 * shape["num_key_value_heads"] * shape["head_dim"] * {"float32": 4, "bfloat16": 2}[shape["dtype"]]
    return table(run, "memory").groupby("step")["logical_tokens"].sum() * token


@pytest.mark.parametrize("method", ["full", "snapkv", "keepkv", "zsmerge", "kvzip", "exactmerge2"])
def test_the_peak_of_a_step_is_at_least_what_is_held_and_the_whole_cache_where_all_layers_wait(
    runs: dict[str, Run], method: str
) -> None:
    run = runs[method]
    drawn = memory_stack_frame(run.memory, run.record).set_index("step")["peak_bytes"]
    held = table(run, "memory").groupby("step")["allocated_bytes"].sum()
    assert (drawn >= held).all()
    whole = uncompressed(run)
    if method in ("full", "kvzip", "exactmerge2"):
        assert drawn[0] >= whole[0]
    else:
        assert drawn[0] < 0.8 * whole[0]
    if method != "full":
        assert (drawn[1:] < 0.6 * whole[1:]).all(), "of that step, not the prompt's"


def test_captions_tell_the_peak_and_its_step_and_old_runs_say_that_they_have_none(runs: dict[str, Run]) -> None:
    run = runs["kvzip"]
    stack = memory_stack_frame(run.memory, run.record)
    assert "while it read the prompt it held" in memory_figures.verdict(stack, "kvzip")
    old = memory_stack_frame(run.memory.drop(columns="cache_peak_bytes"), run.record)
    assert old["peak_bytes"].isna().all() and len(memory_figures.memory_stack(old).data)
    assert "was not recorded by the version" in memory_figures.caption_memory_stack(old)
    of_all = comparison.memory_over_steps(list(runs.values()))
    caption = compare_figures.caption_memory_over_steps(of_all, "peak_bytes")
    most = of_all.loc[of_all["peak_bytes"].idxmax(), "label"]
    assert caption.startswith("The least memory at once") and caption.endswith(f", the most by {most}.")
    unknown = of_all.assign(peak_bytes=np.nan)
    assert "was not recorded by the version" in compare_figures.caption_memory_over_steps(unknown, "peak_bytes")
    assert not compare_figures.memory_over_steps(unknown, measure="peak_bytes").data


# The sign of a merge.


def sizes_by_hand(run: Run) -> float:
    """Sum of (before - after) / sum of before over the merges of a run, from its events.

    What is evicted in the same step raises all other attention, which is taken back.
    """
    events, place = table(run, "events"), ["step", "layer", "head"]
    gone = events[events["target"] < 0].groupby(place)["mass_source"].sum().to_dict()
    merges = events[(events["target"] >= 0) & (events["kind"] != "evict")]
    before = after = 0.0
    for (*where, _), group in merges.groupby([*place, "target"]):
        whole = float(group["mass_target"].iloc[0]) + float(group["mass_source"].sum())
        if whole >= merging.LEAST_MASS:
            before, after = (
                before + whole,
                after + float(group["mass_after"].iloc[0]) * (1 - gone.get(tuple(where), 0.0)),
            )
    return (before - after) / before


def test_what_counts_for_no_sag_is_a_size_and_is_called_one(runs: dict[str, Run]) -> None:
    run = runs["keepkv"]
    rows = merging.sag_rows(run).assign(prompt="p", label=run.record.label)
    claim = merging.exact(rows)
    signed = sizes_by_hand(run)
    assert claim.interval is not None
    assert claim.interval.mean == pytest.approx(abs(signed), rel=1e-3)
    assert claim.part == run.record.label and run.record.label in verdict_sentence(claim, "mini")
    assert "not the default" in verdict_sentence(claim, "mini")
    (exhibit,) = (one for one in EXHIBITS if one.key == "keepkv/fig-1")
    name, _ = exhibit.number_of("one slot", claim)
    assert "lost or gained" in name and run.record.label in name
    name, _ = exhibit.number_of("all merges", claim)
    assert name.startswith("share of the parts' attention that the merged slot lost")


# The scorecard.


def test_an_own_comparison_takes_no_verdict_away(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "EXHIBITS", [one for one in EXHIBITS if one.key in SHOWN])
    before = claims_by_model(cards.scorecard(tmp_path)).set_index(["paper", "claim"])
    after = claims_by_model(cards.scorecard(root)).set_index(["paper", "claim"])
    assert len(before) > 3 and set(before.index) <= set(after.index)
    same = after.loc[before.index]
    for model in ("mini", "SmolLM2-135M-Instruct (Q4_1)"):
        known = before[model].notna()
        assert known.any()
        assert (same.loc[known, model] == before.loc[known, model]).all()
        assert (same.loc[known, f"{model}, n"] >= before.loc[known, f"{model}, n"]).all()
    beside = same["mini, finding"].dropna().str.startswith("Own data (one prompt")
    assert beside.any(), "the own prompt is shown beside"


def test_verdicts_do_not_depend_on_what_is_in_view(root: Path, runs: dict[str, Run]) -> None:
    views = [Sources(root), Sources(root, runs["kvzip"], list(runs.values())), Sources(root, named="smollm2")]
    for exhibit in (one for one in EXHIBITS if one.key in SHOWN[:2]):
        each = [cards.judge_on_each(exhibit, view) for view in views]
        assert each[0] and each[0] == each[1] == each[2]
