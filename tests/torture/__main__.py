"""`make torture`: bad input, kills, full disks and many browsers, as one table (`python -m tests.torture --help`)."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import kvlab
from tests.torture.table import Done, Row, as_markdown, keep


def number(name: str, default: float) -> float:
    """A size of the tests, from the environment."""
    return float(os.environ.get(name, default))


def parts(work: Path) -> dict[str, Callable[[], list[Row]]]:
    """Every part by name, in the order they run. What forks comes first, while nothing else has begun a thread."""
    model, readers, minutes = work / "model", int(number("BROWSERS", 20)), number("MINUTES", 5)
    return {
        "inputs": lambda: [_inputs(work / "in", model)],
        "kills": lambda: _part("kills").kills(work / "kills", model, int(number("KILLS", 100))),
        "disks": lambda: _part("disks").disks(work / "disks", model, int(number("DISKS", 24))),
        "generated": lambda: [_part("generated").generated(int(number("GENERATED", 500)), _say)],
        "held": lambda: [_part("held").held(name) for name in _part("held").HELD],
        "two": lambda: [_part("two").two(work / "two", int(number("JOBS", 20)))],
        "clock": lambda: [_part("clock").set_back(work / "clock", int(number("JOBS", 20)) // 2)],
        "runs": lambda: _part("listed").listed(work / "kept", int(number("KEPT_RUNS", 5000))),
        "paste": lambda: [_paste(work / "paste")],
        "fingers": lambda: [_part("fingers").fingers(work / "fingers", minutes)],
        "hurried": lambda: _part("browsers").hurried(work / "hurried", readers, minutes),
        "reading": lambda: _part("browsers").reading(work / "reading", readers, minutes),
    }


def main() -> None:
    """Run the parts that are named, or all from the beginning, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="such as inputs kills browsers: their rows alone are made again")
    parser.add_argument("--out", type=Path, default=Path("runs/torture.md"), help="where the table goes")
    asked = parser.parse_args()
    kept = asked.out.with_suffix(".json")
    if not asked.parts:
        kept.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvlab-torture-", ignore_cleanup_errors=True) as folder:
        known = parts(Path(folder))
        _model(Path(folder) / "model")
        for name in asked.parts or known:
            begun, when = time.monotonic(), _about()
            rows = _rows(name, known[name])
            done = Done(rows, when, time.monotonic() - begun)
            _say(f"{name}: {done.seconds:.0f} s")
            tables = keep(kept, name, done)
            asked.out.write_text(as_markdown([tables[one] for one in known if one in tables]), encoding="utf-8")
    print(asked.out.read_text(encoding="utf-8"))
    raise SystemExit(any(row.exceptions or row.lost for done in tables.values() for row in done.rows))


def _rows(name: str, part: Callable[[], list[Row]]) -> list[Row]:
    """What the part found; one that falls itself is a row too, and those after it go on."""
    try:
        rows = part()
    except Exception as error:
        _say(traceback.format_exc())
        rows = [Row(name, exceptions=1, faults=[f"the part itself: {type(error).__name__}: {error}"])]
    for row in rows:
        _say(" | ".join(row.cells))
    return rows


def _about() -> str:
    cores, load = psutil.cpu_count(), psutil.getloadavg()[2]
    return (
        f"kvlab {kvlab.__version__}, Python {platform.python_version()}, {cores} cores, load {load:.1f} over the "
        f"15 minutes before, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def _part(name: str) -> Any:
    from importlib import import_module

    return import_module(f"tests.torture.{name}")


def _model(folder: Path) -> None:
    import kvlab.engine
    import kvlab.evaluation.harness
    import kvlab.models.load  # noqa: F401  # forks need not import it again
    from tests.families import tiny_folder

    tiny_folder(folder)


def _inputs(work: Path, model: Path) -> Row:
    from tests.torture.commands import command_cases
    from tests.torture.judge import judge_all

    verdicts = judge_all(command_cases(work, model), _say)
    fallen = [verdict for verdict in verdicts if verdict.fault]
    row = Row("commands that cannot be", len(verdicts), len(fallen), seconds=[verdict.seconds for verdict in verdicts])
    row.faults = [f"{verdict.case.name[:80]}: {verdict.fault}" for verdict in fallen]
    return row


def _paste(work: Path) -> Row:
    from tests.torture.paste import waits

    alone, longest = waits(work, 5.0)
    return Row("5 MB pasted by somebody else", 1, seconds=[longest], note=f"the page alone: {alone:.1f} s")


def _say(line: str) -> None:
    print(line.encode("ascii", "backslashreplace").decode(), flush=True)


if __name__ == "__main__":
    main()
