"""What comes with kvlab reads back as it was drawn, fills what the reader lacks, and is never larger than promised."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from kvlab.core.errors import UserError
from kvlab.evaluation.results.rows import canonical_json
from kvlab.papers import shipped_archive
from kvlab.papers.evaluations import Arm
from kvlab.papers.evidence import Evidence, gather, rows_of_prompt
from kvlab.papers.exhibit import RECORDED, Choice, Drawn, Exhibit, Needs
from kvlab.papers.gvote import probe
from kvlab.papers.keepkv import attention, merging
from kvlab.papers.kvmerger import compression, explainers, similarity
from kvlab.papers.model_exhibits import draw_shipped as drawn
from kvlab.papers.model_exhibits import with_shipped
from kvlab.papers.pyramid_pool import recordings
from kvlab.papers.registry import EXHIBITS, SCORES, find
from kvlab.papers.scorecard import counts, lines
from kvlab.papers.shipped_archive import ALL_EVIDENCE, pack_recorded
from kvlab.requests.measurement import ExhibitFill
from kvlab.results.shipped_folder import DRAWN, Shipped, shipped
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Basis, Claim
from kvlab.trace import open_run
from kvlab.views.base.thumbnail import thumbnail
from tests.papers.test_scores import row
from tests.synthetic.runs import write_synthetic_run

FEW = ("zsmerge/fig-2", "keepkv/fig-2a", "pyramid-pool/fig-1")


def exhibits(*keys: str) -> tuple[Exhibit, ...]:
    return tuple(find(*key.split("/")) for key in keys)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sources, Shipped]:
    """Two prompts of two made-up runs each, packed with two recorded exhibits."""
    root, to = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("packed") / "results"
    for number, prompt in enumerate(("one ", "two ")):
        for method in ("zsmerge", "full"):
            write_synthetic_run(root, method=method, comparison_id=prompt.strip(), seed=number, prompt=prompt * 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped_archive, "EXHIBITS", exhibits(*FEW))
        made = shipped_archive.pack(root, to)
    assert made.size == sum(file.stat().st_size for file in to.rglob("*") if file.is_file())
    assert (made.exhibits, made.left_out) == (2, ()), "a calculator has no data"
    runs = [open_run(path.parent) for path in sorted(root.glob("*/run.json"))]
    first = [run for run in runs if run.record.comparison_id == "one"]
    return Sources(root, first[0], first), Shipped(to)


def test_a_figure_reads_back_as_it_was_drawn(packed: tuple[Sources, Shipped]):
    sources, ships = packed
    for exhibit in exhibits(*FEW[:2]):
        own, back = exhibit.draw(sources, Choice(), "dark"), drawn(ships, exhibit, Sources(Path("nowhere")), "dark")
        assert isinstance(own, tuple) and isinstance(back, tuple)
        for one, other in zip(own, back, strict=True):
            assert one.figure.to_plotly_json().keys() == other.figure.to_plotly_json().keys()
            assert len(one.figure.data) == len(other.figure.data)
            assert thumbnail(one.figure, "dark") == thumbnail(other.figure, "dark")
            assert ships.cards[exhibit.key, "dark"].picture == thumbnail(own[0].figure, "dark")
            pd.testing.assert_frame_equal(one.frame, other.frame, check_dtype=False, rtol=1e-5, atol=0)
            assert (one.name, one.caption, str(one.origin)) == (other.name, other.caption, str(other.origin))
            # Whoever measured it had another folder.
            assert (one.claim and replace(one.claim, settle=None)) == other.claim


def test_what_one_run_of_a_prompt_alone_shows_is_found(packed: tuple[Sources, Shipped]):
    """As a comparison's probe, which is in its first run, whichever method that is."""
    sources, _ = packed
    runs = list(sources.runs)
    first = min(runs, key=lambda run: run.record.run_id).record.method
    only = Evidence("mine", lambda run: pd.DataFrame({"x": [1] * (run.record.method == first)}))
    assert [rows["method"].tolist() for rows in rows_of_prompt(runs, only)] == [[first]]
    assert gather(sources, only)["prompt"].nunique() == 2
    every = Evidence("every", lambda run: pd.DataFrame({"x": [1]}))
    assert [rows["method"].tolist() for rows in rows_of_prompt(runs, every)] == [["full"]]
    assert len(rows_of_prompt(runs, replace(every, methods=("zsmerge", "full")))) == 2


def test_what_recorded_runs_were_asked_for_lies_beside(packed: tuple[Sources, Shipped]):
    _, ships = packed
    rows = ships.evidence("concentration")
    assert rows["prompt"].nunique() == 2
    assert ships.evidence("kernel").empty
    assert ships.description == f"shipped with kvlab, {ships.made['model']}, two CPU cores"


def test_an_empty_folder_is_not_packed(tmp_path: Path):
    with pytest.raises(UserError, match=r"kvlab\.cli\.atlas fill"):
        shipped_archive.pack(tmp_path, tmp_path / "results")


def test_a_claim_measured_later_joins_what_is_packed(tmp_path: Path):
    """Its card and rows come in, rows that were asked for in the same words give way, all others stay."""
    contest = SCORES["beyond/tab-16"].experiment
    to, (first, second) = tmp_path / "results", contest.arms
    for folder, prompts, score in (("old", 2, 0.0), ("new", 8, 1.0)):
        rows = [row(task, arm.method, score, index, contest.budgets[0]) | {
            "question_aware": False, "hyper_parameters": canonical_json(arm.published),
            "key": f"{folder}{task}{arm.name}{index}", "settings": "{}"}
            for task in contest.tasks for arm in (first, second, Arm("full")) for index in range(prompts)]  # fmt: skip
        rows += [row("copy", "h2o", 0.5, 0, 0.2)] if folder == "old" else []
        file = (to if folder == "old" else tmp_path / "runs") / "eval" / "atlas" / "part-000000.parquet"
        file.parent.mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(file)
    pd.DataFrame({"exhibit": ["beyond/tab-1", "beyond/tab-16"], "theme": "light", "picture": "", "origin": "",
                  "claims": "[]"}).to_parquet(to / "cards.parquet")  # fmt: skip
    shipped_archive.pack_also(tmp_path / "runs", to, ["beyond/tab-16"])
    rows = pd.read_parquet(to / "eval" / "atlas" / "part-000000.parquet")
    assert len(rows) == 8 * 3 * len(contest.tasks) + 1 and set(rows[rows["method"] != "h2o"]["score"]) == {1.0}
    cards = pd.read_parquet(to / "cards.parquet")
    assert sorted(zip(cards["exhibit"], cards["theme"], strict=True)) == [
        ("beyond/tab-1", "light"), ("beyond/tab-16", "dark"), ("beyond/tab-16", "light"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="more than evaluations"):
        shipped_archive.pack_also(tmp_path / "runs", to, ["keepkv/fig-1"])


def with_claim(drawn: tuple[Drawn, ...], claim: Claim) -> tuple[Drawn, ...]:
    return tuple(replace(one, claim=claim) for one in drawn)


def test_own_data_stands_and_what_ships_fills_what_it_lacks(packed: tuple[Sources, Shipped]):
    """Nothing of one's own: all that ships. A verdict that rests on fewer prompts is left to what ships; none else."""
    _, ships = packed
    exhibit = exhibits("keepkv/fig-2a")[0]
    empty = Sources(Path("nowhere"), named=ships.model)
    shown = with_shipped(exhibit, Needs("Nothing.", ExhibitFill("beyond/tab-1", Path("runs"))), ships, empty, "light")
    assert isinstance(shown, tuple) and str(shown[0].origin).startswith("shipped with kvlab")
    claim = Claim("It is so.", HOLDS, "0.8", Basis(8))

    class Decided(Shipped):
        def claims(self, exhibit: Exhibit, theme: str) -> tuple[Claim, ...]:
            return (claim,)

    theirs = Decided(ships.root)
    few, own_verdict = replace(claim, verdict=OPEN, basis=Basis(1)), replace(claim, verdict=FAILS, basis=Basis(7))
    mixed = with_shipped(exhibit, with_claim(shown, few), theirs, empty, "light")
    assert isinstance(mixed, tuple) and mixed[0].claim is not None
    assert mixed[0].claim.verdict == HOLDS
    assert mixed[0].claim.finding.startswith("Own data (one prompt) is not enough to say; judged on what is shipped")
    mine = with_shipped(exhibit, with_claim(shown, own_verdict), theirs, empty, "light")
    assert isinstance(mine, tuple) and mine[0].claim == own_verdict
    more = replace(few, basis=Basis(20))
    kept = with_shipped(exhibit, with_claim(shown, more), theirs, empty, "light")
    assert isinstance(kept, tuple) and kept[0].claim == more


def test_what_ships_of_one_model_says_nothing_of_another(packed: tuple[Sources, Shipped]):
    _, ships = packed
    needs = Needs("Nothing.", ExhibitFill("beyond/tab-1", Path("runs")))
    for model in ("mini", "smollm2", "synthetic-2"):
        other = Sources(Path("nowhere"), named=model)
        assert with_shipped(exhibits("keepkv/fig-2a")[0], needs, ships, other, "light") is needs
    assert ships.model == "synthetic"


def test_a_claim_that_several_exhibits_decide_counts_once():
    holds, fails = Claim("A.", HOLDS, "1"), Claim("B.", FAILS, "2")
    walls = exhibits("kvmerger/fig-2", "kvmerger/fig-6")
    found = lines([(walls[0], [holds]), (walls[1], [holds, fails])])
    table = counts(found).set_index("paper")
    assert table.loc["kvmerger", ["holds", "fails", "open"]].tolist() == [1, 1, 0]
    assert [exhibit.slug for exhibit, _ in found["kvmerger"][HOLDS]] == ["fig-2"]
    assert table[["holds", "fails", "open"]].to_numpy().sum() == 2


# What lies under assets/results


needs_results = pytest.mark.skipif(shipped() is None, reason="make shipped was not run in this checkout")


@needs_results
def test_a_shipped_figure_is_read_without_keeping_the_others():
    """All of them take 44 MB as Arrow keeps them."""
    ships = shipped()
    assert ships is not None
    every = pd.read_parquet(ships.root / "drawn.parquet")
    wanted = every[(every["exhibit"] == "keepkv/fig-1") & (every["theme"] == "dark")].to_dict("records")
    del every
    gc.collect()
    before = pa.total_allocated_bytes()
    assert ships.drawings("keepkv/fig-1", "dark") == wanted and wanted
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert ships.drawings("keepkv/no-such-figure", "dark") == []


@needs_results
def test_what_ships_is_small_and_says_what_made_it():
    ships = shipped()
    assert ships is not None
    assert sum(file.stat().st_size for file in ships.root.rglob("*") if file.is_file()) <= shipped_archive.LARGEST
    assert {"kvlab", "torch", "transformers"} <= set(ships.made["versions"])
    assert ships.made["digest"] and ships.made["device"] and ships.made["created"]
    assert {evidence.name for evidence in ALL_EVIDENCE} == {file.stem for file in (ships.root / "evidence").glob("*")}


@needs_results
def test_every_card_of_a_first_visit_is_filled():
    """But those of benchmarks where none was packed: their cards name the command.

    That what is not recorded is drawn as well is asked where every exhibit is drawn, in test_verdict_sentences.py.
    """
    ships = shipped()
    assert ships is not None
    drawings = set(pd.read_parquet(ships.root / "drawn.parquet", columns=["exhibit"])["exhibit"])
    measured = bool(list((ships.root / "bench").glob("*.parquet")))
    for exhibit in EXHIBITS:
        if exhibit.paper == "beyond" or (exhibit.source == "bench" and not measured):
            continue  # what newer methods claim is judged where it was measured, and ships no results
        if exhibit.source in RECORDED:
            assert exhibit.key in drawings, exhibit.key
        if exhibit.source != "calculator":
            assert ships.cards[exhibit.key, "light"].claims, exhibit.key


@needs_results
def test_shipped_verdicts_are_what_the_shipped_rows_say():
    """A threshold or a claim that changes needs `make shipped` again."""
    ships = shipped()
    assert ships is not None
    judges = {
        "keepkv/fig-2a": (attention.majority, "concentration"),
        "keepkv/fig-2b": (attention.returns, "returning"),
        "keepkv/fig-2c": (attention.locality, "in-time"),
        "kvmerger/fig-1": (explainers.keeps_more, "merging-sets"),
        "kvmerger/fig-4": (explainers.pivot_leads, "merging-sets"),
        "kvmerger/fig-2": (similarity.local, "locality"),
        "kvmerger/fig-3a": (similarity.differs, "locality"),
        "kvmerger/fig-3b": (compression.same, "layer-order"),
        "kvmerger/fig-3d": (compression.nearer, "kernel"),
        "pyramid-pool/fig-5": (recordings.localises, "distances"),
        "gvote/fig-2": (probe.gaussian, "channels"),
        "gvote/fig-3a": (probe.overlap, "queries"),
        "gvote/fig-3b": (probe.judge_correlation, "queries"),
    }
    for key, (judge, name) in judges.items():
        claim = next(one.claim for one in drawn(ships, find(*key.split("/")), Sources(Path("x")), "light") if one.claim)
        again = judge(ships.evidence(name))
        assert (claim.verdict, claim.basis.prompts) == (again.verdict, again.basis.prompts), key
    rules = ships.evidence("sag")
    walls = drawn(ships, find("keepkv", "fig-1"), Sources(Path("x")), "light")
    assert {one.claim.paper: one.claim.verdict for one in walls if one.claim} == {
        merging.SAGS: merging.sags(rules).verdict, merging.EXACT: merging.exact(rules).verdict,
    }  # fmt: skip
    assert merging.keeps(ships.evidence("slot-influence")).basis.prompts > 5


def test_every_shipped_drawing_has_a_simple_sentence():
    rows = pd.read_parquet(shipped().root / DRAWN, columns=["exhibit", "name", "simple"])
    assert rows[rows["simple"].str.len() < 10].empty


def test_only_recorded_comparisons_are_packed_again(tmp_path: Path):
    with pytest.raises(
        UserError, match=r"holds no recorded comparison of mini: fill it with .*kvlab\.cli\.atlas fill --out"
    ):
        pack_recorded(tmp_path, tmp_path / "results")
    assert not (tmp_path / "results").exists()
