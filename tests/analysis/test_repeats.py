"""Shares, intervals, rankings and what repeats tell apart, against plain counts over hand-made prompts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.requests.repeats import Planting, Repeat
from kvlab.trace import open_run
from kvlab.views import repeats as figures
from kvlab.views import trade_off
from kvlab.views.frames import repeats
from kvlab.views.frames.repeats import Batch, build_batch, repeat_table, sign_test
from kvlab.views.frames.trade_off import batch_points
from tests.synthetic.runs import write_synthetic_run

RIGHTS = {
    "snapkv": [1, 1, 1, 1, 1, 1, 1, 1, 0],
    "h2o": [0, 0, 0, 0, 0, 0, 0, 1, 0],
    "keepkv": [1, 1, 1, 0, 1, 1, 1, 1, 1],
}


def prompt_table(number: int, verdicts: dict[str, str], reference: str = "right") -> pd.DataFrame:
    """What `judged` gives of one repeat, with the columns that matter here."""
    lines = [
        {
            "label": f"{method} 20 %" if method != "full" else "full cache", "method": method, "row": method,
            "column": "20 %", "verdict": verdict, "mean_kl": 0.1 * number, "kl_answer": 0.2, "top1_agreement": 0.9,
            "live_bytes": 1000.0 + number, "live_ratio": 0.2, "number": number, "of": 12, "reference": reference,
            "status": "complete", "comparison_id": f"b-{number}", "kept": None, "merged": None, "dropped": None,
        }
        for method, verdict in {"full": reference, **verdicts}.items()
    ]  # fmt: skip
    return pd.DataFrame(lines)


@pytest.fixture
def batch() -> Batch:
    names = ("wrong", "right")
    rows = zip(*RIGHTS.values(), strict=True)
    tables = [
        prompt_table(number, {method: names[hit] for method, hit in zip(RIGHTS, row, strict=True)})
        for number, row in enumerate(rows, start=1)
    ]
    return build_batch(tables)


def test_the_full_cache_alone_has_its_own_cell():
    alone = build_batch([prompt_table(number, {}, verdict) for number, verdict in ((1, "right"), (2, "wrong"))])
    (cell,) = alone.cells.itertuples()
    assert (cell.method, cell.n, cell.right, cell.share) == ("full", 2, 1, 0.5)
    assert repeats.rank_cells(alone.cells)[1] == []


def test_a_cell_has_its_share_its_interval_and_its_count(batch: Batch):
    for cell in batch.cells.itertuples():
        hits = RIGHTS[cell.method]
        assert (cell.n, cell.right, cell.wrong) == (9, sum(hits), 9 - sum(hits))
        assert cell.share == pytest.approx(sum(hits) / 9)
        # Wilson's bounds are the shares from which the one observed is 1.96 standard errors away.
        for bound in (cell.share_low, cell.share_high):
            assert (cell.share - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / 9, rel=1e-3)
        assert cell.mean_kl == pytest.approx(0.1 * 5)
        assert 0.1 <= cell.mean_kl_low < cell.mean_kl < cell.mean_kl_high <= 0.9
    assert set(batch.cells["method"]) == set(RIGHTS), "the full cache is no cell"
    assert batch.count == 12


def test_repeats_that_have_not_ended_do_not_count(batch: Batch):
    unfinished = prompt_table(10, dict.fromkeys(RIGHTS, "unfinished"), "unfinished")
    more = build_batch([batch.prompts, unfinished])
    assert more.cells["n"].tolist() == [9, 9, 9]
    none = build_batch([unfinished])
    assert none.cells["n"].tolist() == [0, 0, 0]
    assert repeats.rank_cells(none.cells)[0] == []
    assert {reason for _, reason in repeats.rank_cells(none.cells)[1]} == {"no repeat has ended"}
    assert figures.caption_board(none) == "No prompt with an answer has finished yet."


def test_the_most_often_right_goes_first_and_nothing_is_left_out_without_a_reason(batch: Batch):
    cells = batch.cells.assign(live_bytes=[1000.0, 1050.0, None])
    groups, left = repeats.rank_cells(cells)
    assert [group["method"].tolist() for group in groups] == [["snapkv", "h2o"]]
    assert left == [("keepkv 20 %", "its bytes were not recorded")]
    groups, left = repeats.rank_cells(batch.cells)
    assert sorted([*(label for group in groups for label in group["label"]), *dict(left)]) == sorted(
        batch.cells["label"]
    )
    for group in groups:
        assert group["share"].is_monotonic_decreasing


def test_what_is_told_apart_rests_on_the_same_prompts(batch: Batch):
    ((group,), _) = repeats.rank_cells(batch.cells)
    first = group.iloc[0]["method"]
    for rival in repeats.compare_with_best(batch, group).itertuples():
        other = rival.label.split()[0]
        pairs = list(zip(RIGHTS[first], RIGHTS[other], strict=True))
        assert (rival.first, rival.other) == (pairs.count((1, 0)), pairs.count((0, 1)))
        assert rival.n == 9
        assert rival.apart == (other == "h2o"), "seven to none is more than chance, one to one is not"
    words = figures.caption_significance(batch, group)
    assert "more often right than h2o 20 % (7 to 0)" in words
    assert "not significantly different from" in words


@settings(deadline=None)
@given(st.integers(0, 5), st.integers(0, 5))
def test_the_sign_test_counts_the_splits_that_are_as_uneven(ahead: int, behind: int):
    count = ahead + behind
    splits = [sum(signs) for signs in product((0, 1), repeat=count)]
    as_uneven = sum(abs(2 * ups - count) >= abs(ahead - behind) for ups in splits)
    assert sign_test(ahead, behind) == pytest.approx(as_uneven / len(splits))


def test_the_caption_names_no_best_where_none_is_right(batch: Batch):
    assert figures.caption_board(batch).startswith("The answer is right most often with snapkv 20 % and keepkv 20 %")
    none = build_batch([prompt_table(number, dict.fromkeys(RIGHTS, "wrong")) for number in (1, 2)])
    assert figures.caption_board(none).startswith(
        "All runs alike: the answer is never right, over 2 prompts (of 12 req"
    )


def test_cells_say_share_and_interval_and_one_prompt_says_none(batch: Batch):
    words = figures.share_text(batch.cells.iloc[0])
    assert words.startswith("8 of 9 (89 %, ")
    assert figures.share_text(build_batch([batch.prompts[batch.prompts["number"] == 1]]).cells.iloc[0]) == "1 of 1"


def test_the_figure_carries_its_cell_with_every_mark(batch: Batch):
    figure = figures.board(batch.prompts)
    shown = {tuple(data[:2]) for trace in figure.data for data in trace.customdata}
    assert shown == {(method, "20 %") for method in RIGHTS}
    texts = " ".join(note.text for note in figure.layout.annotations)
    for hits in RIGHTS.values():
        assert f"{sum(hits)} of 9" in texts, "n stands in every cell"


def test_the_strip_of_a_cell_is_the_mean_over_the_prompts_whose_fact_was_followed():
    shares = [(0.5, 0.25, 0.25), (0.1, 0.2, 0.7), (None, None, None)]
    tables = [
        prompt_table(number, {"h2o": "wrong"}).assign(kept=kept, merged=merged, dropped=dropped)
        for number, (kept, merged, dropped) in enumerate(shares, start=1)
    ]
    batch = build_batch(tables)
    (cell,) = batch.cells.itertuples()
    assert cell.traced == 2
    assert (cell.kept, cell.merged, cell.dropped) == pytest.approx((0.3, 0.225, 0.475))
    strips = [trace for trace in figures.board(batch.prompts).data if trace.name and trace.orientation == "h"]
    assert [trace.x[0] / figures.SPAN for trace in strips] == pytest.approx([0.3, 0.225, 0.475])
    ends = [trace.base[0] + trace.x[0] for trace in strips]
    assert [trace.base[0] for trace in strips[1:]] == pytest.approx(ends[:-1]), "one after the other"
    assert "record at level full" not in figures.caption_board(batch)
    assert "record at level full" in figures.caption_board(build_batch(tables[2:])), "and without any it says so"


def test_a_repeat_is_judged_by_its_own_answer_and_another_comparison_is_refused(tmp_path: Path):
    repeat = Repeat(batch="b", number=2, of=3, planting=Planting(wording=1, depth=0.4, draw=5))
    options = {"prompt_tokens": 40, "steps": 8, "layers": 1, "heads": 1, "comparison_id": "b-02"}
    plain = open_run(write_synthetic_run(tmp_path / "plain", method="full", **options))
    answer = plain.record.forced_text.split()[1]
    runs = [
        open_run(write_synthetic_run(tmp_path, method=method, repeat=repeat, answer=answer, **options))
        for method in ("full", "h2o")
    ]
    table = repeat_table(runs)
    assert (table["reference"] == "right").all()
    fates = table.set_index("method")[["kept", "merged", "dropped"]].astype(float)
    assert fates.sum(axis=1).tolist() == pytest.approx([1.0, 1.0])
    assert fates.loc["full", "kept"] == 1.0
    assert table[["number", "of", "depth", "wording", "draw"]].drop_duplicates().values.tolist() == [[2, 3, 0.4, 2, 5]]
    with pytest.raises(UserError, match="not part of a batch"):
        repeat_table([plain])


def test_prompts_without_an_answer_are_ranked_by_closeness_with_intervals():
    """Each prompt's KL is told by hand; the closest of two at equal bytes goes first, and nothing counts as wrong."""
    distances = {"h2o": [0.1, 0.2, 0.3, 0.2, 0.1, 0.3], "snapkv": [0.4, 0.5, 0.6, 0.5, 0.4, 0.6]}
    tables = []
    for number in range(6):
        table = prompt_table(number + 1, dict.fromkeys(distances, repeats.NOT_ASKED), repeats.NOT_ASKED)
        tables.append(
            table.assign(mean_kl=[0.0, *(values[number] for values in distances.values())], live_bytes=1000.0)
        )
    batch = build_batch(tables)
    assert not batch.is_asked
    assert batch.cells["mean_kl"].tolist() == pytest.approx([0.2, 0.5])
    assert (batch.cells["n"].tolist(), batch.cells["ended"].tolist()) == ([0, 0], [6, 6])
    assert batch.cells["wrong"].tolist() == [0, 0] and batch.cells["share"].isna().all()
    ((group,), left) = repeats.rank_cells(batch.cells)
    assert group["method"].tolist() == ["h2o", "snapkv"] and left == []
    (rival,) = repeats.compare_with_best(batch, group).itertuples()
    assert (rival.n, rival.first, rival.other) == (6, 6, 0) and rival.p == pytest.approx(2 / 2**6)
    points = batch_points(batch)
    for theme in ("light", "dark"):
        dots = [
            trace for trace in trade_off.quality_against_bytes(points, theme).data if trace.error_y.array is not None
        ]
        assert [trace.name for trace in dots] == ["h2o", "snapkv"]
        assert [trace.y[0] for trace in dots] == pytest.approx([0.2, 0.5])
        for trace, cell in zip(dots, batch.cells.itertuples(), strict=True):
            assert trace.y[0] + trace.error_y.array[0] == pytest.approx(cell.mean_kl_high)
            assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(cell.mean_kl_low)
    assert (
        trade_off.quality_against_bytes(points).layout.title.text
        == "Quality against bytes: means over 6 prompts, 95 % intervals"
    )
    assert trade_off.caption_quality_against_bytes(points).startswith("Closest to the full cache: h2o 20 % (")


def test_prompts_with_and_without_an_answer_share_only_what_was_asked():
    asked = [prompt_table(number, {"h2o": kind}) for number, kind in ((1, "right"), (2, "wrong"))]
    batch = build_batch([*asked, prompt_table(3, {"h2o": repeats.NOT_ASKED}, repeats.NOT_ASKED)])
    (cell,) = batch.cells.itertuples()
    assert (cell.n, cell.ended, cell.right, cell.share) == (2, 3, 1, 0.5)
    assert cell.mean_kl == pytest.approx(0.2)
    assert figures.caption_references(batch) == "The full cache itself answers 2 of 2 prompts."
