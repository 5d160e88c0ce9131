"""Repeats run one after another: what is done stays and is not run again, a stop and a failure lose nothing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab import jobs
from kvlab.common.formatting import time_left
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.jobs import queue_db
from kvlab.jobs.batch import load_batch, missing_repeats, run_batch
from kvlab.requests.compare import CompareRequest, OnePrompt, Progress
from kvlab.requests.conversation import Turn
from kvlab.requests.repeats import VARIED, Planting, Repeat, plantings
from kvlab.trace import open_run
from kvlab.trace.catalogue import list_repeats, list_runs
from tests.jobs.by_hand import work_off
from tests.synthetic.runs import write_synthetic_run

TEXT = "It was late. The old lamp went out. Then the door opened. Rain came in. She wrote a letter. Nobody read it."
CHOICES = (MethodChoice(method="h2o", budget=0.2), MethodChoice(method="keepkv", budget=0.2))


def request_of(count: int) -> CompareRequest:
    repeats = plantings(count, Planting(), 5)
    return CompareRequest(prompt=TEXT, choices=CHOICES, repeats=repeats, level="light", title="A night")


class Engine:
    """In place of the engine: small runs; stops after `runs` of them, or fails in repeat `fails`."""

    def __init__(self, runs: int = 10**6, fails: int = 0) -> None:
        self.left, self.fails, self.asked = runs, fails, []

    def __call__(
        self,
        request: CompareRequest,
        root: Path,
        *,
        comparison_id: str,
        progress: Callable[[Progress], None] | None,
        cancelled: Callable[[], bool] | None,
    ) -> list[Path]:
        assert request.repeat is not None
        self.asked.append(request)
        if request.repeat.number == self.fails:
            raise UserError("The device is full.")
        paths: list[Path] = []
        for done, method in enumerate(("full", "h2o", "keepkv"), start=1):
            if not self.left:
                return paths
            self.left -= 1
            fields = {name: getattr(request, name) for name in ("repeat", "answer", "facts", "title", "level")}
            paths.append(
                write_synthetic_run(
                    root, method=method, comparison_id=comparison_id, prompt=request.prompt, steps=2, layers=1, heads=1,
                    **fields,
                )
            )  # fmt: skip
            if progress:
                progress(Progress(stage=method, done=done, total=3, run_id=paths[-1].name))
        return paths

    def stopped(self) -> bool:
        return self.left == 0


def numbers(engine: Engine) -> list[int]:
    return [request.repeat.number for request in engine.asked]


def test_every_repeat_is_a_comparison_of_its_own_needle_recorded_with_its_place(tmp_path: Path):
    engine, request = Engine(), request_of(5)
    paths = run_batch(request, tmp_path, engine, comparison_id="night")
    assert len(paths) == 15
    entries = list_repeats(tmp_path, "night")
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5]
    answers = set()
    for entry, planting in zip(entries, request.repeats, strict=True):
        record = open_run(tmp_path / entry.runs[0].run_id).record
        assert record.repeat is not None
        assert (record.repeat.of, record.repeat.planting, record.level) == (5, planting, "light")
        assert record.title.startswith(f"{entry.number} of 5")
        ((start, stop),) = record.facts
        assert record.answer in record.prompt[start:stop]
        assert record.prompt[start:stop] not in TEXT
        answers.add(record.answer)
    assert len(answers) == 5, "a repeat with the same needle would be no further sample"


def test_a_stop_keeps_what_is_done_and_going_on_runs_only_what_is_missing(tmp_path: Path):
    engine = Engine(runs=7)  # two repeats, and one run of the third
    run_batch(request_of(4), tmp_path, engine, comparison_id="night", cancelled=engine.stopped)
    assert numbers(engine) == [1, 2, 3]
    assert missing_repeats(tmp_path, "night", request_of(4)) == [3, 4]
    before = {run.run_id for run in list_runs(tmp_path)}
    again = Engine()
    run_batch(load_batch(tmp_path, "night"), tmp_path, again, comparison_id="another-job")
    assert numbers(again) == [3, 4]
    assert before < {run.run_id for run in list_runs(tmp_path)}, "nothing that was saved is lost"
    entries = list_repeats(tmp_path, "night")
    assert [(entry.number, len(entry.runs)) for entry in entries] == [(1, 3), (2, 3), (3, 3), (4, 3)]
    assert missing_repeats(tmp_path, "night", request_of(4)) == []
    last = Engine()
    assert run_batch(load_batch(tmp_path, "night"), tmp_path, last, comparison_id="x") == []
    assert last.asked == []


def test_a_failure_says_in_which_repeat_and_keeps_those_before(tmp_path: Path):
    with pytest.raises(UserError, match=r"Repeat 3 of 4: The device is full"):
        run_batch(request_of(4), tmp_path, Engine(fails=3), comparison_id="night")
    assert [entry.number for entry in list_repeats(tmp_path, "night")] == [1, 2]


def test_progress_counts_all_repeats_and_never_falls_back(tmp_path: Path):
    told: list[Progress] = []
    run_batch(request_of(3), tmp_path, Engine(), comparison_id="night", progress=told.append)
    shares = [progress.done / progress.total for progress in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [progress.stage.split(":")[0] for progress in told] == [f"{n} of 3" for n in (1, 2, 3) for _ in range(3)]


@pytest.mark.parametrize(
    ("seconds", "share", "words"),
    [(10, 0, ""), (300, 0.5, "about 5 min left"), (90, 0.2, "about 6 min left"), (50, 0.5, "about 50 s left"),
     (36_000, 0.5, "about 10.0 h left")],
)  # fmt: skip
def test_time_left_is_that_of_the_work_so_far(seconds: float, share: float, words: str):
    assert time_left(seconds, share) == words


def test_a_batch_that_is_not_there_or_no_name_is_one_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="no batch 'night'"):
        load_batch(tmp_path, "night")
    with pytest.raises(UserError, match="Invalid comparison id"):
        load_batch(tmp_path, "../night")
    with pytest.raises(UserError, match="Invalid comparison id"):
        run_batch(request_of(2), tmp_path, Engine(), comparison_id="../night")
    assert list(tmp_path.iterdir()) == []


@given(st.integers(1, 60), st.sets(st.sampled_from(VARIED)))
def test_repeats_vary_what_they_are_asked_to_and_spread_at_every_count(count: int, vary: set[str]):
    first = Planting(wording=2, depth=0.25, draw=7)
    found = plantings(count, first, 5, tuple(vary))
    assert [one.draw for one in found] == list(range(7, 7 + count))
    if "depth" not in vary:
        assert {one.depth for one in found} == {0.25}
    elif count >= 3:
        depths = sorted([0.0, *(one.depth for one in found), 1.0])
        gaps = [later - earlier for earlier, later in itertools.pairwise(depths)]
        assert max(gaps) < 2.7 / count, "no part of the text is left out"
    assert len({one.wording for one in found}) == (min(count, 5) if "wording" in vary else 1)


@pytest.mark.parametrize("count", [0, -1, 201])
def test_a_count_that_cannot_be_is_one_sentence(count: int):
    with pytest.raises(UserError, match="cannot be"):
        plantings(count, Planting(), 5)


def worked(root: Path, request: CompareRequest) -> str:
    """The job's id after the worker has run it, with the stand-in for the engine."""
    jobs.submit(root, request)
    return work_off(root, "tests.jobs.test_batch:engine")


engine = Engine()


def test_one_job_runs_all_repeats_and_its_id_is_the_batchs(tmp_path: Path):
    job_id = worked(tmp_path, request_of(3))
    assert jobs.status(tmp_path, job_id).state == "complete"
    assert [entry.number for entry in list_repeats(tmp_path, job_id)] == [1, 2, 3]


def test_looks_before_a_comparison_do_not_pile_up(tmp_path: Path):
    folder = tmp_path / "aside"
    for look in range(6):
        path = write_synthetic_run(folder, comparison_id=f"look-{look}", prompt_tokens=8, steps=1, layers=1, heads=1)
        os.utime(path, (look, look))
    queue_db.clear_aside(folder, keep=2)
    left = sorted(path.parent.name for path in folder.glob("*/run.json"))
    assert [name[:6] for name in left] == ["look-4", "look-5"]


def test_several_prompts_are_a_batch_too_each_with_its_own_answer_and_name(tmp_path: Path):
    turns = (Turn(role="user", content="A lamp?"),)
    asked = (OnePrompt(name="a.pdf", prompt="Rain. 17.", answer="17", facts=("17",)), OnePrompt(turns=turns))
    request = CompareRequest(prompts=asked, choices=CHOICES, level="light")
    engine = Engine(runs=4)
    run_batch(request, tmp_path, engine, comparison_id="files", cancelled=engine.stopped)
    assert missing_repeats(tmp_path, "files", request) == [2]
    again = Engine()
    run_batch(load_batch(tmp_path, "files"), tmp_path, again, comparison_id="other")
    assert [(one.prompt, one.turns) for one in again.asked] == [("User: A lamp?\n\nAssistant:", turns)]
    first, second = (open_run(tmp_path / entry.runs[0].run_id).record for entry in list_repeats(tmp_path, "files"))
    assert (first.prompt, first.answer, first.facts) == ("Rain. 17.", "17", ((6, 8),))
    assert first.repeat == Repeat(batch="files", number=1, of=2, name="a.pdf") and second.answer is None
    assert (first.title, second.repeat and second.repeat.name) == ("1 of 2: a.pdf", "prompt 2")
    with pytest.raises(UserError, match="Prompt 2 of 2: The device is full"):
        run_batch(request, tmp_path / "else", Engine(fails=2), comparison_id="files")
