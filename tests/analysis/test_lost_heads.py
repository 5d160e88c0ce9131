"""Heads that lost the answer: counts over results by hand, which runs count as failed, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from kvlab.core.restore import Restore
from kvlab.trace.restore_results import RestoreResult, SearchResult
from kvlab.views.lost_heads import caption_lost_heads, count_lost_heads, failed_runs, lost_heads, short_words


def change(slots: int, heads: tuple | None = None, kind: str = "tokens", restores: bool = True) -> SearchResult:
    returned = Restore(kind=kind, tokens=(3,) if kind == "tokens" else (), heads=heads)
    return SearchResult(search="x", returned=returned, restores=restores, complete=True, tried=1, slots=slots)


def result(*found: SearchResult) -> RestoreResult:
    return RestoreResult(
        run_id="r", comparison_id="c", label="h2o 20 %", answer="48213", expected=True, reruns=7, most_reruns=40,
        seconds=1.0, fact=(3,), reference=("a",), reader=(0, 1), slots=9, text_before="x", kl_before=(1.0,),
        found=found,
    )  # fmt: skip


RESULTS = [
    result(change(12), change(2, ((1, 0),))),  # the cheapest counts
    result(change(6, ((1, 0), (0, 1)))),
    result(change(30, ((1, 0),), "heads"), change(1, ((0, 0),), restores=False)),  # what restores nothing does not
    result(change(8)),
    result(change(4, ((0, 0),), restores=False)),
]


def record(layers: int, heads: int, sliding: tuple[int, ...] = ()) -> Any:
    model = SimpleNamespace(num_hidden_layers=layers, num_key_value_heads=heads)
    return SimpleNamespace(model=model, sliding_layers=sliding)


def test_the_heads_of_the_cheapest_changes_are_counted_with_their_price():
    lost = count_lost_heads(RESULTS, record(2, 2))
    counts = lost.set_index(["layer", "head"])
    assert counts["count"].to_dict() == {(0, 0): 0, (0, 1): 1, (1, 0): 3, (1, 1): 0}
    assert counts.loc[(1, 0), "slots"] == 6 and counts.loc[(0, 1), "slots"] == 6
    assert counts.loc[[(0, 0), (1, 1)], "slots"].isna().all()
    counted = {"results": 5, "located": 3, "prompts": 1}
    assert lost.attrs == counted, "one is restored by nothing, and one in every head"


def test_layers_without_a_recording_are_left_out_and_no_result_is_no_lost_head():
    lost = count_lost_heads([], record(4, 1, sliding=(0, 2)))
    assert lost["layer"].tolist() == [1, 3] and lost["count"].sum() == 0
    assert lost.attrs["results"] == 0


def test_n_is_said():
    several = [one.model_copy(update={"comparison_id": f"c{place % 4}"}) for place, one in enumerate(RESULTS)]
    caption = caption_lost_heads(count_lost_heads(several, record(2, 2)))
    assert caption == "Giving their tokens back to single heads restores 3 of the 5 lost answers, of 4 prompts."
    assert "none of the 2 lost answers" in caption_lost_heads(count_lost_heads([RESULTS[4]] * 2, record(2, 2)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_map_has_layers_across_and_counts_on_its_cells(theme: str):
    figure = lost_heads(count_lost_heads(RESULTS, record(2, 2)), theme)
    heat = figure.data[0]
    assert heat.z.tolist() == [[0, 3], [1, 0]]
    assert "median price 6 slots" in str(heat.text[0][1])
    assert figure.layout.xaxis.title.text == "layer" and figure.layout.yaxis.title.text == "KV head"
    assert "5 lost answers" in figure.layout.title.text


def test_a_cell_says_where_and_for_how_many_slots_an_answer_is_restored():
    assert [short_words(one) for one in RESULTS] == [
        "restored by 2 slots in layer 1 head 0", "restored by 6 slots in 2 heads",
        "restored by 30 slots in layer 1 head 0", "restored by 8 slots in every head", "nothing tried restores it",
    ]  # fmt: skip
    assert short_words(result(change(0, ((0, 1),), "evict"))) == "restored in layer 0 head 1 for no slot more"


def test_only_wrong_answers_that_the_full_cache_gives_have_failed():
    table = pd.DataFrame({
        "method": ["full", "h2o", "h2o", "keepkv", "keepkv"],
        "verdict": ["wrong", "wrong", "nearly", "right", "unfinished"],
    })  # fmt: skip
    assert failed_runs(table).index.tolist() == [1, 2]
    assert failed_runs(table.assign(reference=["right", "right", "wrong", "right", "right"])).index.tolist() == [1]
