"""Exhibits of several models: what is drawn for the one in view, with which badge, and verdicts model by model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from kvlab.evaluation.results.rows import canonical_json
from kvlab.papers import scorecard as cards
from kvlab.papers.evaluations import Arm
from kvlab.papers.evidence import FOLDER, DiskCache, Evidence, gather
from kvlab.papers.exhibit import Choice, Drawn, Needs
from kvlab.papers.model_exhibits import badge_of, draw_shown, on_thumbnail, with_badge
from kvlab.papers.registry import EXHIBITS, find
from kvlab.papers.scorecard import SHAPES, Judged, by_model, claims_by_model, counts, exhibit_list, matching
from kvlab.requests.measurement import Evaluation
from kvlab.results.shipped_folder import shipped, shipped_results
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, HOLDS, OPEN, Basis, Claim
from kvlab.trace import open_run
from kvlab.trace.schema import ModelShape
from kvlab.views.base.thumbnail import thumbnail
from tests.papers.test_scores import row
from tests.synthetic.runs import write_synthetic_run

OTHER = "/models/other"
CONTEST = find("beyond", "tab-1")  # kvzip against snapkv


def evaluated(root: Path, scores: dict[str, float]) -> None:
    """Eight prompts of the contest by model; KVzip has the model's score, SnapKV 0.5."""
    rows = []
    for model, score in scores.items():
        for task in ("needle", "key_value"):
            for index in range(8):
                for arm, value in ((Arm("full"), 1.0), (Arm("kvzip"), score), (Arm("snapkv"), 0.5)):
                    rows.append(row(task, arm.method, value, index, 0.1) | {
                        "question_aware": False, "hyper_parameters": canonical_json(arm.published), "model": model,
                        "key": f"{model}{task}{arm.name}{index}",
                    })  # fmt: skip
    file = root / "eval" / "made-up" / "part-000000.parquet"
    file.parent.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(file)


def verdict_on(sources: Sources) -> str:
    found = CONTEST.draw(sources, Choice(), "light")
    assert isinstance(found, tuple) and found[0].claim is not None
    return found[0].claim.verdict


def test_rows_of_two_models_are_judged_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Together they would have a mean of 0.5, a tie."""
    monkeypatch.setattr(cards, "shipped_results", dict)  # mini's ship with more prompts than these
    evaluated(tmp_path, {"mini": 1.0, OTHER: 0.0})
    everything = Sources(tmp_path)
    assert everything.models == ["mini", OTHER]
    assert verdict_on(everything.of_model("mini")) == HOLDS
    assert verdict_on(everything.of_model(OTHER)) == FAILS
    judged = [
        (CONTEST, cards.draw_card(CONTEST, everything.of_model(model), "light").judged) for model in everything.models
    ]
    found = by_model(judged)
    assert list(found) == ["mini", OTHER]
    of_one = by_model(judged[:1], ("zeta", OTHER))
    assert list(of_one) == ["mini", OTHER, "zeta"], "the columns do not move as claims come in"
    assert not any(any(verdicts.values()) for verdicts in of_one[OTHER].values())
    for lines, name in zip(found.values(), ("holds", "fails"), strict=True):
        assert counts(lines).set_index("paper").loc["beyond", name] == 1
    table = claims_by_model(found)
    assert table.loc[0, ["mini", "mini, n", "other", "other, n"]].tolist() == [HOLDS, 16, FAILS, 16]
    assert "exhibit" in table and table.loc[0, "exhibit"] == "Contest 1"
    rows = exhibit_list([CONTEST, find("zsmerge", "fig-2")], judged, ["mini", OTHER])
    assert rows["number"].tolist() == ["Contest 1", "Fig 2"]
    assert rows.loc[0, ["mini", "mini, n", "other", "other, n"]].tolist() == [HOLDS, 16, FAILS, 16]
    assert rows.loc[1, "claim"] == "" and rows.loc[1, ["mini", "other"]].isna().all()


def test_a_search_is_for_all_of_its_words_in_texts_and_claims():
    claim = Claim("Budgets fall linearly.", HOLDS, "so much")
    claims = {"pyramid-pool/fig-3": [claim]}

    def found(words: str) -> list[str]:
        return [exhibit.key for exhibit in matching(EXHIBITS, words, lambda exhibit: claims.get(exhibit.key, []))]

    assert found("  ") == [exhibit.key for exhibit in EXHIBITS]
    assert found("pyramidpool LINEARLY") == ["pyramid-pool/fig-3"]
    assert found("contest 2-bit") == ["beyond/tab-10"]
    assert found("linearly gvote") == []
    assert "keepkv/fig-1" in found("sag")
    assert "gvote/fig-6" not in found("sag"), "usage is another word"


def test_of_another_model_s_data_the_picture_says_whose_it_is(tmp_path: Path):
    """In the figure, hence in its PNG, in the thumbnail, and beside what the model in view lacks."""
    evaluated(tmp_path, {"mini": 1.0})
    own = draw_shown(CONTEST, Sources(tmp_path, named="mini"), Choice(), "light", {})
    assert isinstance(own, tuple) and badge_of(own[0].figure) == "" and own[0].wanted is None
    sources = Sources(tmp_path, named=OTHER)
    shown = draw_shown(CONTEST, sources, Choice(), "light", {})
    assert isinstance(shown, tuple)
    assert (badge_of(shown[0].figure), shown[0].model) == ("measured on mini", "mini")
    missing = shown[0].wanted.measurement if shown[0].wanted else None
    assert isinstance(missing, Evaluation) and missing.model == OTHER
    card = cards.draw_card(CONTEST, sources, "light")
    assert card.badge == "measured on mini" and ">measured on mini</text>" in card.picture
    assert [one.model for one in card.judged] == ["mini"] and card.measurement == missing
    assert not cards.own_claims(card.judged, OTHER)


@pytest.mark.skipif(shipped() is None, reason="make shipped was not run in this checkout")
def test_what_ships_has_a_badge_for_another_model_and_benchmarks_have_one_for_all(tmp_path: Path):
    ships = shipped_results()
    for key in ("keepkv/fig-2a", "keepkv/fig-4"):
        exhibit = find(*key.split("/"))
        for model, words in (("mini", ""), (OTHER, "measured on mini")):
            shown = draw_shown(exhibit, Sources(tmp_path, named=model), Choice(), "dark", ships)
            assert isinstance(shown, tuple) and {badge_of(one.figure) for one in shown} == {words}
            assert cards.draw_card(exhibit, Sources(tmp_path, named=model), "dark").badge == words
    bench = find("zsmerge", "tab-1")
    for model in ("mini", OTHER):
        shown = draw_shown(bench, Sources(tmp_path, named=model), Choice(), "light", ships)
        assert isinstance(shown, tuple) and badge_of(shown[0].figure).startswith("measured on the shapes llama2-7b")
        (judged,) = cards.draw_card(bench, Sources(tmp_path, named=model), "light").judged
        assert judged.model == SHAPES
    calculator = draw_shown(find("pyramid-pool", "fig-1"), Sources(tmp_path, named=OTHER), Choice(), "light", ships)
    assert isinstance(calculator, tuple) and badge_of(calculator[0].figure) == ""


def test_a_badge_leaves_the_figure_it_was_made_from_and_escapes_the_name():
    plain = go.Figure(go.Scatter(x=[1], y=[1]))
    marked = with_badge(plain, "measured on <a&b>", "light")
    assert badge_of(plain) == "" and badge_of(marked) == "measured on <a&b>"
    assert marked.layout.annotations[0].text == "<b>measured on &lt;a&amp;b&gt;</b>"
    assert "&lt;a&amp;b&gt;" in on_thumbnail(thumbnail(plain, "light"), "measured on <a&b>", "light")


def test_the_newest_comparison_of_a_model_is_in_view_where_another_was(tmp_path: Path):
    shape = ModelShape(
        name=OTHER, family="llama", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        dtype="float32", parameters=0,
    )  # fmt: skip
    here = open_run(write_synthetic_run(tmp_path, comparison_id="here"))
    theirs = write_synthetic_run(tmp_path, comparison_id="theirs", model=shape)
    sources = Sources(tmp_path, here, [here])
    assert sources.models == [OTHER, "synthetic"] and sources.of_model("synthetic") is sources
    found = sources.of_model(OTHER)
    assert found.run is not None and found.run.path == theirs and found.measured_model == OTHER
    missing = sources.of_model("mini")
    assert (missing.run, missing.measured_model) == (None, "mini")
    needs = CONTEST.draw(found, Choice(), "light")
    assert isinstance(needs, Needs) and isinstance(needs.measurement, Evaluation)
    assert needs.measurement.model == OTHER


def test_a_claim_stands_in_the_column_of_its_model_only():
    exhibit = find("kvmerger", "fig-9")
    claim = Claim("A.", HOLDS, "1", Basis(8))
    found = by_model(
        [(exhibit, [Judged("z", claim), Judged("mini", replace(claim, verdict=OPEN)), Judged(SHAPES, claim)])]
    )
    assert list(found) == ["mini", "z", SHAPES]
    assert claims_by_model(found).loc[0, ["mini", "z"]].tolist() == [OPEN, HOLDS]


# On disk


def test_what_is_kept_is_of_one_state_of_its_data(tmp_path: Path):
    store = DiskCache(tmp_path, "cards")
    assert store.read(("a",), "1") is None
    store.write(("a",), "1", b"one\ntwo")
    assert store.read(("a",), "1") == b"one\ntwo"
    assert store.read(("a",), "2") is None and store.read(("b",), "1") is None
    file = next((tmp_path / FOLDER / "cards").glob("*"))
    file.write_bytes(file.read_bytes()[:3])
    assert store.read(("a",), "1") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path):
    (tmp_path / FOLDER).write_text("in the way")
    DiskCache(tmp_path, "cards").write(("a",), "1", b"one")
    assert DiskCache(tmp_path, "cards").read(("a",), "1") is None


def test_the_oldest_files_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kvlab.papers.evidence.MOST_FILES", 8)
    store = DiskCache(tmp_path, "cards")
    for number in range(20):
        store.write((str(number),), "1", str(number).encode())
    assert len(list((tmp_path / FOLDER / "cards").glob("*"))) <= 8
    assert store.read(("19",), "1") == b"19" and store.read(("0",), "1") is None


def test_evidence_of_a_run_is_computed_once_and_again_when_the_run_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_synthetic_run(tmp_path, comparison_id="here")
    asked: list[int] = []
    counted = Evidence("counted", lambda run: pd.DataFrame({"x": [asked.append(1) or 1]}))
    for expected in (1, 1):
        monkeypatch.setattr("kvlab.papers.evidence._kept", {})  # as in a new process
        run = open_run(path)
        assert gather(Sources(tmp_path, run, [run]), counted)["x"].tolist() == [1]
        assert len(asked) == expected
    record = path / "run.json"
    record.write_text(record.read_text() + " ")
    monkeypatch.setattr("kvlab.papers.evidence._kept", {})
    run = open_run(path)
    gather(Sources(tmp_path, run, [run]), counted)
    assert len(asked) == 2


def test_a_card_reads_back_from_disk_as_it_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    evaluated(tmp_path, {"mini": 1.0})
    sources = Sources(tmp_path, named=OTHER)
    first = cards.draw_card(CONTEST, sources, "light")
    monkeypatch.setattr(cards, "_draw_card", lambda *_: 1 / 0)
    again = cards.draw_card(CONTEST, Sources(tmp_path, named=OTHER), "light")
    assert again.judged[0].claim.interval == first.judged[0].claim.interval
    assert again.judged[0].claim.interval.samples == first.judged[0].claim.interval.samples
    bare = [  # what settles a claim is not kept
        replace(card, judged=tuple(replace(one, claim=replace(one.claim, settle=None)) for one in card.judged))
        for card in (first, again)
    ]
    assert bare[0] == bare[1]
    assert cards.find_card(CONTEST, sources, "dark") is None
    (tmp_path / "eval" / "made-up" / "part-000000.parquet").touch()
    assert cards.find_card(CONTEST, Sources(tmp_path, named=OTHER), "light") is None


def test_a_drawn_figure_names_the_model_it_was_measured_on(tmp_path: Path):
    run = open_run(write_synthetic_run(tmp_path, method="zsmerge", comparison_id="here"))
    drawn = find("zsmerge", "fig-2").draw(Sources(tmp_path, run, [run]), Choice(), "light")
    assert isinstance(drawn, tuple) and all(isinstance(one, Drawn) and one.model == "synthetic" for one in drawn)
