"""Contenders take turns, and running out of memory is a result."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from kvlab.bench.device import check_room
from kvlab.bench.race import Skipped, race
from kvlab.core.errors import is_out_of_memory

CPU = torch.device("cpu")


class Runner:
    """Writes down what is done to it."""

    warmup = 0
    live_bytes = 7

    def __init__(
        self, name: str, diary: list[str], error: Exception | None = None, when: int = 0, size: int = 1
    ) -> None:
        self.name, self.diary, self.error, self.when, self.expected_bytes = name, diary, error, when, size
        self.steps = 0

    def at_work(self):
        return nullcontext()

    def prepare(self) -> None:
        self.diary.append(f"{self.name} prepare")

    def step(self) -> None:
        self.steps += 1
        if self.error is not None and self.steps > self.when:
            raise self.error
        self.diary.append(self.name)

    def release(self) -> None:
        self.diary.append(f"{self.name} release")


def run(runners: list[Runner], resident: bool | None = True, repeats: int = 3, steps: int = 1, warmup: int = 0):
    return race(runners, CPU, repeats=repeats, steps=steps, warmup=warmup, resident=resident)


def test_everybody_is_timed_once_in_every_round() -> None:
    diary: list[str] = []
    outcomes = run([Runner(name, diary) for name in "abc"], repeats=3)
    assert [entry for entry in diary if len(entry) == 1] == list("abcabcabc")
    assert [len(outcome.samples) for outcome in outcomes] == [3, 3, 3]
    assert diary.count("a prepare") == 1


def test_warm_up_steps_come_before_the_first_turn_only() -> None:
    diary: list[str] = []
    slow_starter = Runner("b", diary)
    slow_starter.warmup = 3
    outcomes = run([Runner("a", diary), slow_starter], repeats=2, steps=2, warmup=1)
    assert [entry for entry in diary if len(entry) == 1] == list("aaa" + "bbbbbb" + "aa" + "bb")
    assert [len(outcome.samples) for outcome in outcomes] == [2, 2]


def test_what_does_not_fit_together_is_prepared_one_by_one_and_still_takes_turns() -> None:
    diary: list[str] = []
    run([Runner(name, diary, size=2**60) for name in "ab"], resident=None, repeats=2)
    one_round = ["a prepare", "a", "a release", "b prepare", "b", "b release"]
    assert diary[: 2 * len(one_round)] == one_round * 2


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError("needs 8.0 GiB, 4.0 GiB may be used"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
@pytest.mark.parametrize("when", [0, 2])
def test_out_of_memory_is_an_outcome_and_the_others_go_on(error: Exception, when: int) -> None:
    diary: list[str] = []
    broken, fine = run([Runner("a", diary, error, when), Runner("b", diary)])
    assert (broken.status, broken.samples) == ("oom", [])
    assert broken.note == str(error)
    assert (fine.status, len(fine.samples)) == ("ok", 3)
    after_the_failure = diary[diary.index("a release") :]
    assert "a" not in after_the_failure
    assert after_the_failure.count("b") == 3 - when  # it was released before anybody else went on


def test_who_cannot_take_part_says_why() -> None:
    (outcome,) = run([Runner("a", [], Skipped("no such kernel here"))])
    assert (outcome.status, outcome.note) == ("skipped", "no such kernel here")


def test_other_errors_are_not_hidden_and_everybody_is_released() -> None:
    diary: list[str] = []
    with pytest.raises(ZeroDivisionError):
        run([Runner("a", diary), Runner("b", diary, ZeroDivisionError())])
    assert {"a release", "b release"} <= set(diary)
    assert not is_out_of_memory(ZeroDivisionError("out of memory"))


def test_the_host_is_asked_before_it_kills() -> None:
    with pytest.raises(MemoryError, match="may be used"):
        check_room(2**60, CPU)
    check_room(1, CPU)
