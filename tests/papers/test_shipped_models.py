"""Results of several models ship side by side: each is shown for its own model alone, judged as when it was packed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvlab.common.intervals import Interval
from kvlab.core.errors import UserError
from kvlab.papers import scorecard as cards
from kvlab.papers import shipped_archive
from kvlab.papers.exhibit import Choice, Drawn, Exhibit, Needs
from kvlab.papers.model_exhibits import DIGITS, _round_frame, badge_of, draw_shown
from kvlab.papers.registry import EXHIBITS, find
from kvlab.papers.scorecard import Judged, by_model, verdicts_on_each
from kvlab.papers.shipped_archive import Packed, pack
from kvlab.results import shipped_folder
from kvlab.results.shipped_folder import CARDS, DRAWN, Shipped, model_order
from kvlab.results.sources import Sources
from kvlab.results.verdict import FAILS, HOLDS, LEAST_PROMPTS, OPEN, Basis, Claim
from kvlab.trace.schema import ModelShape
from tests.papers.test_models import CONTEST, evaluated, verdict_on
from tests.papers.test_verdict_sentences import faults
from tests.synthetic.runs import write_synthetic_run

SECOND, THIRD = "second", "third"
MAP, BENCH = find("keepkv", "fig-2a"), find("zsmerge", "tab-1")
FEW = (MAP, CONTEST, BENCH, find("keepkv", "fig-3"), find("pyramid-pool", "fig-1"))  # a calculator the last


def shape(name: str) -> ModelShape:
    return ModelShape(
        name=name, family="llama", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        dtype="float32", parameters=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison each of mini and of a second model, and a contest that one wins and the other loses."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("mini", SECOND):
        write_synthetic_run(root, method="full", comparison_id=name, model=shape(name))
    evaluated(root, {"mini": 1.0, SECOND: 0.0})
    return root


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Shipped], Packed]:
    """Both models' results as they ship, mini's packed last, over others; and what was packed of the second."""
    results = tmp_path_factory.mktemp("assets") / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped_archive, "EXHIBITS", FEW)
        second = pack(folder, results / "models" / SECOND, model=SECOND)
        (results / "drawn.parquet").write_bytes(b"older")
        pack(folder, results, model="mini")
    return shipped_folder.shipped_results(results), second


@pytest.fixture
def ships(packed: tuple[dict[str, Shipped], Packed], monkeypatch: pytest.MonkeyPatch) -> dict[str, Shipped]:
    """The same, in place of what comes with kvlab."""
    found = packed[0]
    for module in (cards, shipped_folder):
        monkeypatch.setattr(module, "shipped_results", lambda: found)
    return found


def shown(exhibit: Exhibit, root: Path, model: str, ships: dict[str, Shipped]) -> tuple[Drawn, ...] | Needs:
    return draw_shown(exhibit, Sources(root, named=model), Choice(), "light", ships)


def test_each_model_s_results_are_found_by_its_name(ships: dict[str, Shipped]) -> None:
    assert list(ships) == ["mini", SECOND], "packing mini again leaves the others"
    assert [one.description for one in ships.values()] == [
        f"shipped with kvlab, {name}, two CPU cores" for name in ("mini", SECOND)
    ]
    assert sorted(["zeta", SECOND, "alpha", "mini"], key=model_order) == ["mini", SECOND, "alpha", "zeta"]


def test_a_model_s_own_results_are_shown_for_it_and_for_no_third(ships: dict[str, Shipped], tmp_path: Path) -> None:
    for exhibit in (MAP, CONTEST):
        for model, of, badge in (
            ("mini", "mini", ""), (SECOND, SECOND, ""), (THIRD, "mini", "measured on mini"),
            (f"/models/{SECOND}", "mini", "measured on mini"),
        ):  # fmt: skip
            drawn = shown(exhibit, tmp_path, model, ships)
            assert isinstance(drawn, tuple)
            assert {(one.model, badge_of(one.figure)) for one in drawn} == {(of, badge)}, (exhibit.key, model)
            assert all(str(one.origin).startswith(ships[of].description) for one in drawn)
            card = cards.draw_card(exhibit, Sources(tmp_path, named=model), "light")
            assert card.badge == badge and {one.model for one in card.judged} <= {of}
    without = {SECOND: ships[SECOND]}
    assert isinstance(shown(MAP, tmp_path, THIRD, without), Needs)
    assert isinstance(shown(MAP, tmp_path, "mini", without), Needs)


def test_what_a_model_lacks_is_mini_s_with_a_badge(ships: dict[str, Shipped], tmp_path: Path) -> None:
    less = tmp_path / "less"
    shutil.copytree(ships[SECOND].root, less)
    for name in (DRAWN, CARDS):
        rows = pd.read_parquet(less / name)
        rows[rows["exhibit"] != MAP.key].to_parquet(less / name)
    only = {"mini": ships["mini"], SECOND: Shipped(less)}
    drawn = shown(MAP, tmp_path, SECOND, only)
    assert isinstance(drawn, tuple) and {badge_of(one.figure) for one in drawn} == {"measured on mini"}
    assert drawn[0].wanted is not None


def test_results_that_ship_of_a_model_come_before_the_reader_s_of_mini(
    ships: dict[str, Shipped], tmp_path: Path
) -> None:
    """And after the reader's own of that model."""

    def origins(model: str) -> set[tuple[str, bool]]:
        drawn = shown(CONTEST, tmp_path, model, ships)
        assert isinstance(drawn, tuple)
        return {(one.model, "shipped" in str(one.origin)) for one in drawn}

    evaluated(tmp_path, {"mini": 1.0})
    assert origins(SECOND) == {(SECOND, True)} and origins(THIRD) == {("mini", False)}
    shutil.rmtree(tmp_path / "eval")
    evaluated(tmp_path, {"mini": 1.0, SECOND: 1.0})
    assert origins(SECOND) == {(SECOND, False)} and verdict_on(Sources(tmp_path, named=SECOND)) == HOLDS


def test_claims_judged_when_packed_are_those_judged_when_read(ships: dict[str, Shipped], tmp_path: Path) -> None:
    """Of the contest, which is judged again from the rows that ship."""
    for model, verdict in (("mini", HOLDS), (SECOND, FAILS)):
        drawn = shown(CONTEST, tmp_path, model, ships)
        assert isinstance(drawn, tuple) and drawn[0].claim is not None
        (then,) = ships[model].claims(CONTEST.key, "light")
        assert replace(drawn[0].claim, settle=None) == replace(then, settle=None)
        assert then.verdict == verdict
        assert set(pd.read_parquet(ships[model].root / "eval")["model"]) == {model}


def test_a_folder_that_is_filled_in_part_says_what_is_left_out(packed: tuple[dict[str, Shipped], Packed]) -> None:
    """Of a model that is not mini no benchmark is missed."""
    ships, second = packed
    assert second.left_out == ("keepkv/fig-3",) and second.exhibits == 2
    assert not (ships[SECOND].root / "bench").exists()
    assert second.size == sum(file.stat().st_size for file in ships[SECOND].root.rglob("*") if file.is_file())
    assert {key for key, _ in ships[SECOND].cards} == {MAP.key, CONTEST.key}


def test_two_models_in_a_folder_need_a_name_and_too_much_leaves_what_was_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="holds data of mini, second: name one of them with --model"):
        pack(folder, tmp_path / "results")
    with pytest.raises(
        UserError, match=r"no recorded comparison of third: fill it with .*kvlab\.cli\.atlas fill --model third"
    ):
        pack(folder, tmp_path / "results", model=THIRD)
    monkeypatch.setattr(shipped_archive, "EXHIBITS", (MAP,))
    to = tmp_path / "results" / "models" / SECOND
    pack(folder, to, model=SECOND)
    (tmp_path / "results" / "large").write_bytes(b"0" * 1000)
    before = {file: file.read_bytes() for file in to.rglob("*") if file.is_file()}
    monkeypatch.setattr(shipped_archive, "LARGEST", 1000 + sum(map(len, before.values())) - 1)
    with pytest.raises(UserError, match="The shipped results of all models would take"):
        pack(folder, to, model=SECOND)
    assert {file: file.read_bytes() for file in to.rglob("*") if file.is_file()} == before
    assert [path.name for path in to.parent.iterdir()] == [SECOND], "nothing half-packed stays"


def test_a_frame_is_stored_once_and_with_six_digits(ships: dict[str, Shipped]) -> None:
    rows = pd.read_parquet(ships[SECOND].root / DRAWN)
    assert rows.groupby(["exhibit", "name"])["frame"].agg(lambda frames: sum(map(bool, frames))).eq(1).all()
    light, dark = (ships[SECOND].drawings(MAP.key, theme) for theme in ("light", "dark"))
    assert [row["frame"] for row in light] == [row["frame"] for row in dark] and all(row["frame"] for row in light)
    values = np.array([1 / 3, -2e-19, 7654321.5, 0.0, np.nan, np.inf, 1.0], np.float32)
    frame = _round_frame(pd.DataFrame({"value": values, "count": range(7), "name": "x"}))
    for given, kept in zip(values, frame["value"], strict=True):
        assert f"{kept:.{DIGITS - 1}e}" == f"{given:.{DIGITS - 1}e}"
    assert "0.333333," in frame.to_json(double_precision=15) and frame["count"].tolist() == list(range(7))


def test_a_claim_s_verdicts_on_each_model_are_one_line() -> None:
    claim = Claim("A.", HOLDS, "1", Basis(8))
    few = replace(claim, verdict=OPEN, basis=Basis(LEAST_PROMPTS - 1))
    enough = replace(claim, verdict=OPEN, basis=Basis(LEAST_PROMPTS), interval=Interval(0, -1, 1, LEAST_PROMPTS))
    judged = [Judged("smollm2", replace(claim, verdict=FAILS)), Judged("mini", claim), Judged("mini", few)]
    title = "SmolLM2-135M-Instruct (Q4_1)"
    assert verdicts_on_each(judged, "A.") == f"holds on mini, does not hold on {title}"
    assert verdicts_on_each([Judged("mini", claim), Judged("a", few), Judged("b", enough)], "A.") == (
        "holds on mini, undecided on a (5 prompts; a verdict needs 6), undecided on b"
    )
    assert verdicts_on_each(judged[1:], "A.") == "" and verdicts_on_each(judged, "B.") == ""


def test_the_scorecard_has_a_column_per_model_and_cards_the_verdicts_of_all(
    ships: dict[str, Shipped], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "EXHIBITS", FEW[:2])
    found = cards.scorecard(tmp_path)
    assert list(found) == ["mini", SECOND]
    assert found["mini"]["beyond"][HOLDS] and found[SECOND]["beyond"][FAILS]
    judged = cards.judge_on_each(CONTEST, Sources(tmp_path, named=THIRD))
    line = verdicts_on_each(judged, judged[0].claim.paper)
    assert line == f"holds on mini, does not hold on {SECOND}"
    assert list(by_model([(CONTEST, judged)])) == ["mini", SECOND]


def test_a_card_is_drawn_again_when_other_results_ship(ships: dict[str, Shipped], tmp_path: Path) -> None:
    sources = Sources(tmp_path, named=SECOND)
    cards.draw_card(CONTEST, sources, "light")
    assert cards.find_card(CONTEST, sources, "light") is not None
    of_second = ships.pop(SECOND)
    try:
        assert cards.find_card(CONTEST, sources, "light") is None
        assert cards.draw_card(CONTEST, sources, "light").badge == "measured on mini"
    finally:
        ships[SECOND] = of_second


def test_all_that_ships_is_small_and_whole() -> None:
    """Whichever models come with kvlab: verdicts agree with their numbers, and rows are of the folder's model alone."""
    every = shipped_folder.shipped_results()
    root = next(iter(every.values())).root
    assert sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) <= shipped_archive.LARGEST
    known = {exhibit.key for exhibit in EXHIBITS}
    for model, ships in every.items():
        assert ships.made["model"] == model and {key for key, _ in ships.cards} <= known
        claims = [claim for exhibit in EXHIBITS for claim in ships.claims(exhibit.key, "light")]
        assert not {claim.paper: wrong for claim in claims if (wrong := faults(claim))}, model
        for part in (ships.root / "eval").rglob("*.parquet"):
            assert set(pd.read_parquet(part, columns=["model"])["model"]) == {model}
        assert model == "mini" or not (ships.root / "bench").exists()
