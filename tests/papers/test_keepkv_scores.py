"""KeepKV's figures 4 and 5 and tables 1 to 4: judged on evaluations and benchmarks whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.bench.rows import ResultFile, Row
from kvlab.core.methods import make_method
from kvlab.core.methods.merging.keepkv import NearestMerge
from kvlab.papers.evaluations import Experiment
from kvlab.papers.paper_tables import paper_values
from kvlab.papers.registry import SCORES, find
from kvlab.results.sources import Sources
from tests.papers.drawing import drawn
from tests.papers.evaluations import can_be_run, evaluated

RATIOS, COMBINED, BENCHMARK, ORDERS, THRESHOLDS = (
    SCORES[f"keepkv/{slug}"].experiment for slug in ("fig-4", "fig-5", "tab-2", "tab-3", "tab-4")
)
EXPERIMENTS = (RATIOS, COMBINED, BENCHMARK, ORDERS, THRESHOLDS)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_the_stated_evaluations_can_be_run(experiment: Experiment, tmp_path: Path):
    can_be_run(experiment, tmp_path)


def test_compositions_are_the_other_methods_choices_with_keepkvs_merging():
    composed = [arm for arm in COMBINED.arms if arm.method == "compose"]
    for arm, name in zip(composed, ("h2o", "pyramidinfer"), strict=True):
        made, plain = make_method(arm.method, **arm.options).pipeline(), make_method(name).pipeline()
        assert made.allocate == plain.allocate
        assert made.select == plain.select
        assert isinstance(made.settle, NearestMerge)


@pytest.mark.parametrize(
    ("slug", "experiment", "budgets", "best"),
    [
        ("fig-4", RATIOS, (0.05, 0.2), "keepkv"),
        ("fig-5", COMBINED, (0.1, 0.2), "compose"),
        ("tab-2", BENCHMARK, (0.2,), "keepkv"),
    ],
)
def test_methods_are_ranked_on_the_same_prompts(
    tmp_path: Path, slug: str, experiment: Experiment, budgets: tuple[float, ...], best: str
):
    """The claim holds where KeepKV always scores more, and does not where it always scores less."""
    for folder, sign, verdict in (("more", 1, "holds"), ("less", -1, "does not hold")):
        sources = evaluated(
            tmp_path / folder,
            experiment.arms,
            lambda arm, budget, index, sign=sign: (0.5 + 0.2 * sign * (arm.method == best), budget),
            budgets,
        )
        found = drawn(find("keepkv", slug), sources)
        assert {one.claim.verdict for one in found if one.claim} == {verdict}
        assert len(found) == (2 if slug == "fig-5" else 1)


@pytest.mark.parametrize(("slug", "experiment", "best"), [("tab-3", ORDERS, "merge-first"), ("tab-4", THRESHOLDS, 0.8)])
def test_options_are_compared_and_the_paper_stands_beside(tmp_path: Path, slug: str, experiment: Experiment, best):
    sources = evaluated(
        tmp_path,
        experiment.arms,
        lambda arm, budget, index: (0.4 + 0.3 * (best in arm.options.values()), budget),
        experiment.budgets,
    )
    found = drawn(find("keepkv", slug), sources)
    assert found[0].claim is not None and found[0].claim.verdict == "holds"
    assert found[0].grey is not None and len(found[0].grey) == (4 if slug == "tab-3" else 3)


def test_the_papers_tables_are_whole():
    """Four models by seven methods by thirteen tasks, with corners as printed."""
    values = paper_values("keepkv", "tab-2")
    assert len(values) == 4 * 7 * 13
    table = values.set_index(["model", "method", "dataset"])["value"]
    assert table["Llama-2-7B", "full", "NrtvQA"] == 15.8
    assert table["Mistral-7B", "keepkv", "RB-P"] == 50.71


# table 1


def speeds(factor: dict[str, float], scale: int) -> list[Row]:
    shared = {
        "mode": "decode",
        "figure": "decode rate",
        "model": "shape:llama2-7b",
        "context": 4096,
        "unit": "tokens/s",
    }
    shared |= {"asked_context": 4096, "preset": "keepkv-table1", "scale": scale, "timestamp": "2026-01-01T00:00:00"}
    rows = [Row(method="full", batch=batch, median=50.0 * batch, is_full=True, **shared) for batch in (2, 8)]
    return rows + [
        Row(
            method=name,
            batch=8,
            median=400.0 * times,
            ratio_to_full=times,
            budget=0.2,
            budget_unit="fraction",
            **shared,
        )
        for name, times in factor.items()
    ]


@pytest.mark.parametrize(
    ("keepkv", "scale", "verdict"), [(2.2, 1, "holds"), (1.2, 1, "does not hold"), (2.2, 16, "not enough to say")]
)
def test_speed_is_judged_at_equal_batch_and_full_size(tmp_path: Path, keepkv: float, scale: int, verdict: str):
    results = ResultFile(tmp_path / "bench" / "keepkv-table1.parquet")
    results.path.parent.mkdir()
    results.add(speeds({"h2o": 2.8, "d2o": 1.1, "keepkv": keepkv}, scale))
    (found,) = drawn(find("keepkv", "tab-1"), Sources(tmp_path))
    assert found.claim is not None and found.claim.verdict == verdict
    paper = found.frame.set_index("method")["paper_ratio"]
    assert paper["keepkv"] == pytest.approx(255.99 / 116.54)
