"""What was found, in words: the cheapest that restores the answer, which head lost what, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.core.restore import Restore
from kvlab.jobs.work import rerun_with_restored
from kvlab.trace import Run, open_run
from kvlab.trace.record import choice_of
from kvlab.trace.restore_results import RestoreResult, SearchResult
from kvlab.views.frames import restore
from tests.synthetic.runs import write_synthetic_run


def found(search: str, returned: Restore, slots: int, restores: bool = True, complete: bool = True) -> SearchResult:
    return SearchResult(search=search, returned=returned, restores=restores, complete=complete, tried=2, slots=slots)


def known(run: Run, *searches: SearchResult) -> RestoreResult:
    return RestoreResult(
        run_id=run.record.run_id, comparison_id="c", label="h2o 20 %", answer="48213", expected=True, reruns=7,
        most_reruns=40, seconds=1.0, fact=(3,), reference=("a",), reader=(0, 1), slots=9, text_before="x",
        kl_before=(1.0,), found=searches,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return open_run(write_synthetic_run(tmp_path_factory.mktemp("runs"), method="h2o", budget=0.3))


def dropped_first(run: Run, layer: int, head: int, step: int) -> int:
    events = run.events
    here = events[(events["layer"] == layer) & (events["head"] == head) & (events["step"] == step)]
    return int(here["source"].min())


def test_the_cheapest_is_named_with_the_head_that_dropped_it_and_when(run: Run):
    token = dropped_first(run, 0, 1, 0)
    text = run.tokens[run.tokens["phase"] == "prompt"]["text"].tolist()[token].strip()
    some, one = Restore(tokens=(token,)), Restore(tokens=(token,), heads=((0, 0), (0, 1)))
    result = known(
        run, found("tokens", some, 12), found("reading heads", one, 2), found("heads", Restore(kind="heads"), 1, False)
    )
    assert restore.sentence(result, run) == (
        f"h2o 20 % fails because layer 0 head 1 dropped “{text}” when the prompt was compressed; "
        "keeping this token in 2 heads restores the answer, costing 2 slots."
    )


def test_what_left_later_is_said_to_have_left_while_decoding(run: Run):
    later = dropped_first(run, 0, 1, 3)
    result = known(run, found("tokens", Restore(tokens=(later,), heads=((0, 1),)), 1))
    assert "while decoding; keeping this token in 1 head" in restore.sentence(result, run)


def test_heads_and_merges_have_sentences_of_their_own(run: Run):
    heads = Restore(kind="heads", heads=((3, 2), (3, 1)))
    assert (
        "by what layer 3 head 1 and layer 3 head 2 lost; the full cache there restores the answer, costing 96 slots"
        in (restore.sentence(known(run, found("heads", heads, 96)), run))
    )
    evict = known(run, found("evict", Restore(kind="evict", heads=((0, 0),)), 0))
    assert "by merging; evicting what it merges in layer 0 head 0 restores the answer, costing no slot more" in (
        restore.sentence(evict, run)
    )


def test_nothing_found_is_said_with_how_much_was_tried(run: Run):
    result = known(run, found("tokens", Restore(tokens=(1,)), 4, restores=False))
    assert "nothing that was tried in 7 reruns restores “48213”" in restore.sentence(result, run)
    assert restore.search_table(result)["outcome"].tolist() == ["not even all of it restores the answer"]


def test_a_run_made_of_the_result_is_named_by_what_differs(run: Run):
    back = Restore(tokens=(738, 739, 740))
    request = rerun_with_restored(run.record, back)
    assert [choice.label for choice in request.choices] == [run.record.label, f"{run.record.label} + tokens 738-740"]
    again = run.record.model_copy(update={"returned": back, "label": request.choices[1].label})
    assert choice_of(again).label == again.label, "also when it is itself made again"


def test_the_estimate_follows_the_speed_of_the_run(run: Run, tmp_path: Path):
    slow = run.record.model_copy(update={"decode_tokens_per_second": 1.0, "seconds_prefill": 3.0})
    assert restore.estimate_seconds(Run(run.path, slow), 40) == pytest.approx(9 * 3.0 + 51 * slow.max_new_tokens)
    untimed = slow.model_copy(update={"decode_tokens_per_second": None})
    assert restore.estimate_seconds(Run(run.path, untimed), 40) is None
