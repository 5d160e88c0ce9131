"""KVMerger's tables and the needle: claims follow the rows, and every stated command is one that kvlab takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kvlab.bench.rows import Row, to_table
from kvlab.cli import commands
from kvlab.core.methods import make_method
from kvlab.evaluation.results.rows import ROWS, canonical_json
from kvlab.papers.benchmarks import PRESET, memory_shares
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.papers.paper_tables import paper_values
from kvlab.papers.registry import find, of_paper
from kvlab.requests.measurement import command_line
from kvlab.results.sources import Sources

EVALUATED = ("fig-3c", "fig-5", "tab-1", "tab-3", "tab-4", "tab-5", "tab-6")
PROMPTS = 12


def row(method: str, score: float, index: int, budget: float = 0.5, **more: object) -> dict[str, object]:
    options = {name: value for name, value in more.items() if name not in ROWS.names}
    values: dict[str, object] = {
        "key": f"{method}{options}{budget}{index}{more}", "task": "needle", "difficulty": "{}", "content": "",
        "length": 512, "index": index, "seed": 0, "method": method, "hyper_parameters": canonical_json(options),
        "variant": "", "budget": 1.0 if method == "full" else budget, "budget_unit": "fraction",
        "question_aware": True, "model": "mini", "model_digest": "d" * 20, "metric": "whole_match_all",
        "score": score, "slots": 256.0, "logical_tokens": 512, "live_bytes": 10, "allocated_bytes": 20,
        "seconds": 0.1,
    }  # fmt: skip
    values |= {name: value for name, value in more.items() if name in ROWS.names}
    return {name: values.get(name) for name in ROWS.names}


def evaluation(root: Path, rows: list[dict[str, object]]) -> Sources:
    folder = root / "eval" / "mine"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ROWS), folder / "part-000000.parquet")
    return Sources(root)


def drawn(slug: str, sources: Sources) -> tuple[Drawn, ...]:
    found = find("kvmerger", slug).draw(sources, Choice(), "light")
    assert not isinstance(found, Needs), found
    return found


def arm(method: str, score: float, budget: float = 0.5, **options: object) -> list[dict[str, object]]:
    return [row(method, score, index, budget, **options) for index in range(PROMPTS)]


FULL = [row("full", 1.0, index) for index in range(PROMPTS)]


@pytest.mark.parametrize(
    ("full", "ours", "random", "verdict"),
    [(1, 0.9, 0.2, "holds"), (1, 0.2, 0.9, "does not hold"), (0, 0, 0, "not enough to say")],
)
def test_an_ablation_is_judged_by_its_rows(
    tmp_path: Path, full: float, ours: float, random: float, verdict: str
) -> None:
    rows = [row("full", full, index) for index in range(PROMPTS)]
    rows += arm("kvmerger", ours) + arm("kvmerger", random, pivot="random")
    scores, by_option = drawn("tab-3", evaluation(tmp_path, rows))
    assert scores.claim is not None
    assert scores.claim.verdict == verdict
    assert set(by_option.frame["pivot"]) == {"attention", "random"}
    assert scores.grey is not None
    assert len(scores.grey) == 2


def test_a_mixed_result_is_not_judged(tmp_path: Path) -> None:
    rows = FULL + arm("kvmerger", 0.5) + [row("h2o", float(index % 2), index) for index in range(PROMPTS)]
    rows += arm("cam", 0.1)
    (scores,) = drawn("tab-1", evaluation(tmp_path, rows))
    assert scores.claim is not None
    assert scores.claim.verdict == "not enough to say"
    assert "+0.4" in scores.claim.finding


def test_other_budgets_and_other_settings_stay_out(tmp_path: Path) -> None:
    rows = FULL + arm("h2o", 0.2) + arm("h2o", 0.9, budget=0.1) + arm("kvmerger", 0.1, weights="average")
    rows += arm("kvmerger", 0.7)
    (scores,) = drawn("fig-3c", evaluation(tmp_path, rows))
    assert set(scores.frame["arm"]) == {"full", "h2o", "kvmerger:weights=average"}
    assert set(scores.frame["budget"]) == {0.5, 1.0}
    assert scores.grey is None, "the paper prints no numbers for this figure"


def test_scores_are_of_prompts_that_every_arm_saw(tmp_path: Path) -> None:
    rows = FULL + arm("kvmerger", 0.5) + [row("kvmerger", 1.0, 3, pivot="random")]
    scores, _ = drawn("tab-3", evaluation(tmp_path, rows))
    assert scores.frame.set_index("arm")["prompts"].tolist() == [1, 1, 1]
    assert scores.claim is not None and "one prompt" in scores.claim.finding, "there is no interval of one prompt"
    assert scores.claim.verdict == "not enough to say"


def grid(method: str, score: float, own: float | None, merged: float | None) -> list[dict[str, object]]:
    cells = [(length, depth) for length in (512, 1024) for depth in (0.1, 0.5, 0.9)]
    return [
        row(method, score, 0, length=length, depth=depth, hidden_own=own, hidden_merged=merged)
        for length, depth in cells
    ]


def test_the_needle_is_drawn_by_length_and_depth_with_the_fate_of_its_tokens(tmp_path: Path) -> None:
    rows = grid("full", 1.0, 1.0, 0.0) + grid("h2o", 0.0, 0.25, 0.0) + grid("kvmerger", 1.0, 0.25, 0.5)
    cells, fates = drawn("fig-5", evaluation(tmp_path, rows))
    assert len(cells.frame) == 3 * 6
    assert [trace.z.shape for trace in cells.figure.data] == [(3, 2)] * 3
    shown = fates.frame.set_index("row")
    assert shown.loc["kvmerger 50 %", ["hidden_own", "hidden_merged", "gone"]].tolist() == [0.25, 0.5, 0.25]
    assert shown.loc["h2o 50 %", "gone"] == 0.75
    assert fates.claim is not None
    assert fates.claim.verdict == "holds"


def test_results_without_fates_still_give_the_map(tmp_path: Path) -> None:
    rows = grid("full", 1.0, None, None) + grid("h2o", 0.0, None, None) + grid("kvmerger", 1.0, None, None)
    assert len(drawn("fig-5", evaluation(tmp_path, rows))) == 1


def test_prompts_at_random_depths_are_no_needle_map(tmp_path: Path) -> None:
    rows = FULL + arm("h2o", 0.2) + arm("kvmerger", 0.2)
    found = find("kvmerger", "fig-5").draw(evaluation(tmp_path, rows), Choice(), "light")
    assert isinstance(found, Needs)


@pytest.mark.parametrize("slug", EVALUATED)
def test_the_stated_command_is_one_that_eval_takes(slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def record(request: object, out: Path, **_: object) -> None:
        asked.append((request, out))
        raise SystemExit(0)

    monkeypatch.setattr("kvlab.evaluation.harness.evaluate", record)
    needs = find("kvmerger", slug).draw(Sources(tmp_path), Choice(), "light")
    assert isinstance(needs, Needs)
    outcome = CliRunner().invoke(commands, shlex.split(command_line(needs.measurement))[1:])
    assert outcome.exit_code == 0, outcome.output
    ((request, out),) = asked
    assert out.name == f"kvmerger-{slug}"
    for choice in request.choices:
        make_method(choice.method, **choice.hyper_parameters)


def test_paper_values_are_complete() -> None:
    counts = {"tab-1": 21 * 10, "tab-2": 12, "tab-3": 12, "tab-4": 12, "tab-5": 24, "tab-6": 7 * 8}
    for slug, count in counts.items():
        values = paper_values("kvmerger", slug)
        assert len(values) == count, slug
        assert values["value"].notna().all()
    assert [exhibit.slug for exhibit in of_paper("kvmerger")][-6:] == list(counts)


def bench(full: float, at_half: float) -> Sources:
    fixed = {"mode": "memory", "model": "shape:llama2-7b", "batch": 1, "context": 3900, "unit": "bytes"}
    rows = [
        Row(**fixed, figure="allocated bytes", method="full", median=full, is_full=True, preset=PRESET, timestamp="2"),
        Row(
            **fixed,
            figure="allocated bytes",
            method="kvmerger",
            median=at_half,
            budget=0.5,
            preset=PRESET,
            timestamp="2",
        ),
    ]
    sources = Sources(Path("nowhere"))
    sources.__dict__["benchmarks"] = to_table(rows).to_pandas().assign(name="mine")
    return sources


@pytest.mark.parametrize(("at_half", "verdict"), [(1.02, "holds"), (1.5, "does not hold")])
def test_memory_is_read_as_a_share_of_the_full_cache(at_half: float, verdict: str) -> None:
    (figure,) = drawn("tab-2", bench(2.0, at_half))
    assert figure.frame["ours"].tolist() == [at_half / 2]
    assert figure.frame["paper"].tolist() == [pytest.approx(0.51)]
    assert figure.claim is not None
    assert figure.claim.verdict == verdict
    assert figure.grey is not None


def test_memory_of_other_models_has_nothing_beside_it() -> None:
    sources = bench(2.0, 1.0)
    rows = sources.benchmarks.assign(model="shape:tiny")
    assert memory_shares(rows)["paper"].isna().all()
    at_other_budget = memory_shares(sources.benchmarks.replace({"budget": {0.5: 0.2}}))
    assert len(at_other_budget) and at_other_budget["paper"].isna().all()
