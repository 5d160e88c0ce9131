"""Runs one piece of work in a process of its own and says how it ended: in a sentence, or by falling."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kvlab.core.errors import UserError

LONGEST_SECONDS = 30.0
MOST_BYTES = 6 << 30  # of addresses, above what the process has taken already
LONGEST_SENTENCE = 1200
FELL = ("Traceback (most recent call last)", "Uncaught app execution", "Segmentation fault")


@dataclass(frozen=True)
class Case:
    """Something bad that is tried. `work` returns None, or a word on what went wrong without an exception."""

    room: str
    name: str
    work: Callable[[], object]
    must_refuse: bool = False  # to go through is a fault too


@dataclass(frozen=True)
class Verdict:
    """How a case ended."""

    case: Case
    code: int
    seconds: float
    said: str
    fault: str

    @property
    def line(self) -> str:
        """One line of a table of cases."""
        state = f"FAULT ({self.fault})" if self.fault else "ok"
        what = f"{self.case.room:12} {self.case.name[:70]:70} {self.code:4} {self.seconds:6.1f}"
        return f"{what} {state:28} {self.said[-150:]!r}"


def judge(case: Case, limit: float = LONGEST_SECONDS) -> Verdict:
    """Fork, do the case's work with its output caught, and look at how it ended."""
    with tempfile.TemporaryFile() as caught:
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _work(case, caught.fileno())
        status = _wait(child, begun + limit)
        seconds = time.monotonic() - begun
        caught.seek(0)
        text = caught.read(1 << 20).decode("utf-8", "replace")
    code = 124 if status is None else os.waitstatus_to_exitcode(status)
    said = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return Verdict(case, code, seconds, said, _fault(case, code, text, said))


def judge_all(cases: Iterable[Case], say: Callable[[str], object] | None = None) -> list[Verdict]:
    """The verdicts of all cases; `say` is given a line for each that fell."""
    found = []
    for case in cases:
        verdict = judge(case)
        found.append(verdict)
        if say is not None and verdict.fault:
            say(verdict.line)
    return found


def _work(case: Case, output: int) -> None:
    code = 70
    try:
        os.setsid()
        os.dup2(output, 1), os.dup2(output, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
        taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES,) * 2)
        code = _ended(case.work)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = 71
        os._exit(code)


def _ended(work: Callable[[], object]) -> int:
    try:
        wrong: Any = work()
    except UserError as error:
        print(str(error), file=sys.stderr)
        return 2
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    if isinstance(wrong, str):
        print(wrong)
        return 3
    return 0


def _wait(child: int, until: float) -> int | None:
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)


def _fault(case: Case, code: int, text: str, said: str) -> str:
    if code == 124:
        return "does not end"
    if any(word in text for word in FELL):
        return "exception"
    if code == 3:
        return "said nothing of it"
    if code not in (0, 2):
        return f"exit {code}"
    if code == 2 and len(said) > LONGEST_SENTENCE:
        return "no sentence"
    if case.must_refuse and code == 0:
        return "accepted"
    return ""
